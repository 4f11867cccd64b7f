"use strict";
// Draws the stacks of the page as a flame graph: width is the measure that is chosen.
(() => {
    const data = JSON.parse(document.getElementById("stacks").textContent);
    const place = document.getElementById("flame-graph");
    const measure = document.getElementById("measure");
    const search = document.getElementById("search");
    const details = document.getElementById("details");
    const units = ["B", "KB", "MB", "GB", "TB"];

    function text(value) {
        if (!data.measures[measure.value].bytes) return value.toLocaleString("en");
        let unit = 0;
        for (; value >= 1024 && unit < units.length - 1; unit++) value /= 1024;
        return `${value.toFixed(unit ? 1 : 0)} ${units[unit]}`;
    }

    // A tree by name from the outermost function; a node's value holds those of its children.
    function tree(index) {
        const root = { name: data.root, value: 0, children: [], parent: null, byName: new Map() };
        for (const [frames, values] of data.stacks) {
            const value = values[index];
            if (value <= 0) continue;
            let node = root;
            root.value += value;
            for (const frame of frames) {
                let child = node.byName.get(frame);
                if (!child) {
                    child = { name: data.frames[frame], value: 0, children: [], parent: node, byName: new Map() };
                    node.byName.set(frame, child);
                    node.children.push(child);
                }
                child.value += value;
                node = child;
            }
        }
        return root;
    }

    const rowHeight = 18;
    const letterWidth = 7;
    const svgName = "http://www.w3.org/2000/svg";
    const highlight = "#E600E6";
    let root = null;
    let focus = null;
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

    function box(svg, node, x, width, depth) {
        const frame = add(svg, "g", { class: "frame", name: node.name, tabindex: "0" });
        add(frame, "title", {}).textContent = label(node);
        const y = depth * rowHeight;
        add(frame, "rect", { x, y, width, height: rowHeight - 1, fill: matches(node) ? highlight : colour(node.name) });
        const letters = Math.floor((width - 6) / letterWidth);
        if (letters >= 3) {
            const short = node.name.length > letters ? `${node.name.slice(0, letters - 1)}…` : node.name;
            add(frame, "text", { x: x + 3, y: y + 13 }).textContent = short;
        }
        frame.addEventListener("mouseenter", () => { details.textContent = label(node); });
        frame.addEventListener("mouseleave", () => { details.textContent = found; });
        const zoom = () => { focus = node; paint(); };
        frame.addEventListener("click", zoom);
        frame.addEventListener("keydown", event => { if (event.key === "Enter") zoom(); });
    }

    // Above the box that is shown as wide as the page are those it is part of; below, what it called.
    function paint() {
        found = "";
        if (search.value !== "") {
            const bytes = foundBytes(root);
            found = bytes ? `found: ${text(bytes)}, ${share(bytes)}` : "found nothing";
        }
        details.textContent = found;
        place.replaceChildren();
        const width = place.clientWidth;
        const svg = add(place, "svg", { width, role: "img" });
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
        for (let node = focus.parent; node; node = node.parent) above.unshift(node);
        above.forEach((node, depth) => box(svg, node, 0, width, depth));
        placeBelow(focus, 0, width, above.length);
        svg.setAttribute("height", rows * rowHeight);
    }

    function draw() {
        place.replaceChildren();
        root = focus = tree(Number(measure.value));
        details.textContent = "Nothing of this measure was seen.";
        if (root.value) paint();
    }

    measure.addEventListener("change", draw);
    search.addEventListener("input", () => { if (root.value) paint(); });
    document.getElementById("reset").addEventListener("click", () => {
        search.value = "";
        draw();
    });
    let wide = innerWidth;
    addEventListener("resize", () => {
        if (innerWidth !== wide) draw();
        wide = innerWidth;
    });
    // The one that was asked for; of a program that has freed all, the peak says more than what is live.
    const first = [...measure.selectedOptions, ...measure.options].find(option => tree(Number(option.value)).value);
    if (first) measure.value = first.value;
    draw();
})();
