"use strict";
// Draws the stacks of the page as a flame graph: width is the measure that is chosen.
(() => {
    const data = JSON.parse(document.getElementById("stacks").textContent);
    const place = document.getElementById("flame-graph");
    const measure = document.getElementById("measure");
    const search = document.getElementById("search");
    const fold = document.getElementById("fold");
    const details = document.getElementById("details");
    const units = ["B", "KB", "MB", "GB", "TB"];

    function text(value) {
        if (!data.measures[measure.value].bytes) return value.toLocaleString("en");
        let unit = 0;
        for (; value >= 1024 && unit < units.length - 1; unit++) value /= 1024;
        return `${value.toFixed(unit ? 1 : 0)} ${units[unit]}`;
    }

    const python = new Set(data.python);
    const interpreter = new Set(data.interpreter);
    const folding = { index: -1, name: "CPython" };

    // Of what runs Python, the function that allocates. Where Python's own functions are named, nothing else of it says
    // more; where they are not, one box stands for what lies between functions of others.
    function folded(frames) {
        const told = frames.some(frame => python.has(frame));
        const kept = [];
        frames.forEach((frame, index) => {
            if (!interpreter.has(frame) || index === frames.length - 1) kept.push(frame);
            else if (!told && kept[kept.length - 1] !== folding.index) kept.push(folding.index);
        });
        return kept;
    }

    // A tree by name from the outermost function; a node's value holds those of its children.
    function tree(index) {
        const root = { name: data.root, value: 0, children: [], parent: null, byName: new Map() };
        for (const [frames, values] of data.stacks) {
            const value = values[index];
            if (value <= 0) continue;
            let node = root;
            root.value += value;
            for (const frame of fold && fold.checked ? folded(frames) : frames) {
                let child = node.byName.get(frame);
                if (!child) {
                    const name = frame === folding.index ? folding.name : data.frames[frame];
                    child = { name, value: 0, children: [], parent: node, byName: new Map() };
                    node.byName.set(frame, child);
                    node.children.push(child);
                }
                child.value += value;
                node = child;
            }
        }
        return root;
    }

    const rowHeight = matchMedia("(pointer: coarse)").matches ? 26 : 18;
    const letterWidth = 7;
    const svgName = "http://www.w3.org/2000/svg";
    const highlight = "#E600E6";
    let root = null;
    // Shown as wide as the page; the one that the keys and the details are at, if any; all that are drawn, and the one
    // that the Tab key leads to.
    let zoomed = null;
    let selected = null;
    let boxes = [];
    let stop = null;
    let found = "";

    function share(value) {
        return root.value ? `${(100 * value / root.value).toFixed(1)} %` : "";
    }

    function label(node) {
        const own = node.value - node.children.reduce((sum, one) => sum + one.value, 0);
        const self = own > 0 && node.children.length ? `, ${text(own)} in itself` : "";
        return `${node.name}: ${text(node.value)}, ${share(node.value)}${self}`;
    }

    function matches(node) {
        return search.value !== "" && node.name.toLowerCase().includes(search.value.toLowerCase());
    }

    // A function below one that was found is part of it already.
    function foundBytes(node) {
        return matches(node) ? node.value : node.children.reduce((sum, one) => sum + foundBytes(one), 0);
    }

    // The same name has the same colour in each report.
    function colour(name) {
        let hash = 0;
        for (const letter of name) hash = (hash * 31 + letter.codePointAt(0)) % 997;
        return `hsl(${18 + hash % 37}, 85%, ${62 + hash % 13}%)`;
    }

    function add(parent, name, attributes) {
        const element = document.createElementNS(svgName, name);
        for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
        return parent.appendChild(element);
    }

    function tell(node) {
        details.textContent = node ? label(node) : found;
    }

    // All boxes together are one stop of the Tab key.
    function box(svg, node, x, width, depth) {
        const text = label(node);
        const frame = add(svg, "g", {
            class: "frame", name: node.name, tabindex: "-1", role: "treeitem", "aria-level": depth + 1, "aria-label": text,
        });
        boxes.push({ node, frame, x, depth });
        add(frame, "title", {}).textContent = text;
        const y = depth * rowHeight;
        add(frame, "rect", { x, y, width, height: rowHeight - 1, fill: matches(node) ? highlight : colour(node.name) });
        const letters = Math.floor((width - 6) / letterWidth);
        if (letters >= 3) {
            const short = node.name.length > letters ? `${node.name.slice(0, letters - 1)}…` : node.name;
            add(frame, "text", { x: x + 3, y: y + rowHeight / 2 + 4 }).textContent = short;
        }
        frame.addEventListener("mouseenter", () => tell(node));
        frame.addEventListener("mouseleave", () => tell(selected));
        frame.addEventListener("focus", () => select(node));
        frame.addEventListener("click", () => zoom(node));
    }

    function drawn(node) {
        return boxes.find(one => one.node === node);
    }

    function select(node) {
        selected = node;
        if (stop) stop.setAttribute("tabindex", "-1");
        stop = (drawn(node) || boxes[0]).frame;
        stop.setAttribute("tabindex", "0");
        tell(node);
    }

    function go(one) {
        if (!one) return;
        one.frame.focus({ preventScroll: true });
        one.frame.scrollIntoView({ block: "nearest" });
    }

    function zoom(node) {
        zoomed = node;
        selected = node;
        paint();
        go(drawn(node));
    }

    function inRow(from, step) {
        const row = boxes.filter(one => one.depth === from.depth).sort((a, b) => a.x - b.x);
        return row[row.indexOf(from) + step];
    }

    const keys = {
        ArrowUp: from => go(drawn(from.node.parent)),
        ArrowDown: from => go(boxes.find(one => one.node.parent === from.node && one.depth > from.depth)),
        ArrowLeft: from => go(inRow(from, -1)),
        ArrowRight: from => go(inRow(from, 1)),
        Home: () => go(boxes[0]),
        Enter: from => zoom(from.node),
        " ": from => zoom(from.node),
        Escape: from => { zoomed = root; selected = from.node; paint(); go(drawn(from.node) || boxes[0]); },
    };
    place.addEventListener("keydown", event => {
        const from = boxes.find(one => one.frame === document.activeElement);
        if (!from || event.ctrlKey || event.altKey || event.metaKey || !Object.hasOwn(keys, event.key)) return;
        event.preventDefault();
        keys[event.key](from);
    });

    // Above the box that is shown as wide as the page are those it is part of; below, what it called.
    function paint() {
        found = "";
        if (search.value !== "") {
            const bytes = foundBytes(root);
            found = bytes ? `found: ${text(bytes)}, ${share(bytes)}` : "found nothing";
        }
        place.replaceChildren();
        boxes = [];
        const width = place.clientWidth;
        const svg = add(place, "svg", { width, role: "tree", "aria-label": "Flame graph" });
        let rows = 0;
        function placeBelow(node, x, wide, depth) {
            box(svg, node, x, wide, depth);
            rows = Math.max(rows, depth + 1);
            for (const child of [...node.children].sort((a, b) => b.value - a.value)) {
                const part = wide * child.value / node.value;
                if (part >= 1) placeBelow(child, x, part, depth + 1);
                x += part;
            }
        }
        const above = [];
        for (let node = zoomed.parent; node; node = node.parent) above.unshift(node);
        above.forEach((node, depth) => box(svg, node, 0, width, depth));
        placeBelow(zoomed, 0, width, above.length);
        svg.setAttribute("height", rows * rowHeight);
        // A few of those above it stay to be seen.
        place.scrollTop = Math.max(0, above.length - 3) * rowHeight;
        select(selected && drawn(selected) ? selected : null);
    }

    function draw() {
        place.replaceChildren();
        root = zoomed = tree(Number(measure.value));
        selected = null;
        details.textContent = "Nothing of this measure was seen.";
        if (root.value) paint();
    }

    measure.addEventListener("change", draw);
    if (fold) fold.addEventListener("change", draw);
    search.addEventListener("input", () => {
        selected = null;
        if (root.value) paint();
    });
    document.getElementById("reset").addEventListener("click", () => {
        search.value = "";
        draw();
    });
    let wide = innerWidth;
    addEventListener("resize", () => {
        if (innerWidth !== wide && root.value) paint();
        wide = innerWidth;
    });
    // The one that was asked for; of a program that has freed all, the peak says more than what is live.
    const first = [...measure.selectedOptions, ...measure.options].find(option => tree(Number(option.value)).value);
    if (first) measure.value = first.value;
    draw();
})();
