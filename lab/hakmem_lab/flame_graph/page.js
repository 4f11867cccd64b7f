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
        const root = { name: data.root, value: 0, children: [], byName: new Map() };
        for (const [frames, values] of data.stacks) {
            const value = values[index];
            if (value <= 0) continue;
            let node = root;
            root.value += value;
            for (const frame of frames) {
                let child = node.byName.get(frame);
                if (!child) {
                    child = { name: data.frames[frame], value: 0, children: [], byName: new Map() };
                    node.byName.set(frame, child);
                    node.children.push(child);
                }
                child.value += value;
                node = child;
            }
        }
        return root;
    }

    let chart = null;
    let total = 0;
    let found = "";

    function share(value) {
        return total ? `${(100 * value / total).toFixed(1)} %` : "";
    }

    function label(node) {
        const own = node.data.value - node.data.children.reduce((sum, one) => sum + one.value, 0);
        const self = own > 0 && node.data.children.length ? `, ${text(own)} in itself` : "";
        return `${node.data.name}: ${text(node.data.value)}, ${share(node.data.value)}${self}`;
    }

    function draw() {
        place.replaceChildren();
        const root = tree(Number(measure.value));
        total = root.value;
        details.textContent = total ? "" : "Nothing of this measure was seen.";
        if (!total) return;
        chart = flameGraphLibrary.flamegraph()
            .width(place.clientWidth)
            .cellHeight(18)
            .minFrameSize(1)
            .inverted(true)
            .transitionDuration(matchMedia("(prefers-reduced-motion: reduce)").matches ? 0 : 200)
            .sort((a, b) => b.data.value - a.data.value)
            .setLabelHandler(label)
            .setDetailsHandler(line => { details.textContent = line || found; })
            .setSearchMatch((node, term) =>
                term !== "" && node.data.name.toLowerCase().includes(term.toLowerCase()))
            .setSearchHandler((results, sum) => {
                found = results.length ? `found: ${text(sum)}, ${share(sum)}` : "found nothing";
                details.textContent = found;
            });
        flameGraphLibrary.select(place).datum(root).call(chart);
        look();
    }

    function look() {
        found = "";
        if (!chart) return;
        if (search.value) chart.search(search.value);
        else chart.clear();
    }

    measure.addEventListener("change", draw);
    search.addEventListener("input", look);
    document.getElementById("reset").addEventListener("click", () => {
        search.value = "";
        draw();
    });
    let wide = innerWidth;
    addEventListener("resize", () => {
        if (innerWidth !== wide) draw();
        wide = innerWidth;
    });
    draw();
})();
