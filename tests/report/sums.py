"""The sums that hold in every snapshot (docs/figures.md). As a program: checks the JSON text in a file."""
import json
import sys

SPAN = 65536
CLASSES = 85


def check(d: dict) -> list[str]:
    """What does not hold; empty if all does."""
    wrong: list[str] = []

    def equal(name: str, left: int, right: int) -> None:
        if left != right:
            wrong.append(f"{name}: {left} is not {right}")

    def add(d: dict, *names: str) -> int:
        return sum(d[n] for n in names)

    spans, slabs, rows = d["spans"], d["slabs"], d["classes"]
    equal("spans", spans["accessible"], add(
        spans, "slabs", "extents", "extents_cached", "heaps", "free_dirty", "free_clean", "claimed", "guards"))
    equal("classes", len(rows), CLASSES)
    for row in [slabs | {"slab_bytes": slabs["bytes"], "class": "all"}, *rows]:
        equal(f"class {row['class']}", row["slab_bytes"], add(row, "handed_out", "free", "never_allocated", "rest"))
        equal(f"class {row['class']} out", row["handed_out"], add(row, "live", "cached", "depots"))
    equal("slabs", slabs["bytes"], spans["slabs"])
    for name in ("handed_out", "live", "cached", "depots", "free", "never_allocated", "rest"):
        equal(name, slabs[name], sum(row[name] for row in rows))
    for row in rows:
        if row["estimated_requested"] is not None:
            equal(f"estimate {row['class']}", row["live"], add(row, "estimated_requested", "estimated_rounding"))
    for name in ("requested", "rounding"):
        equal(f"estimated {name}", d["estimate"][name], sum(row[f"estimated_{name}"] or 0 for row in rows))
    equal("estimate", slabs["live"], add(d["estimate"], "requested", "rounding", "unknown"))
    if d["extents"]["requested"] is not None:
        equal("extents", spans["extents"], add(d["extents"], "requested", "tail"))
    equal("own", d["own"]["total"], add(d["own"], "metadata", "tables", "other"))
    equal("accessible", d["total"]["accessible"], spans["accessible"] + add(d["huge"], "live", "heaps", "kept")
          + d["sampled"]["accessible"] + d["own"]["total"])
    equal("live", d["total"]["live"], slabs["live"] + spans["extents"] + d["huge"]["live"] + d["sampled"]["live"]
          + d["heaps_total"]["live"])
    heaps = d["heaps_total"]
    equal("heaps", heaps["held"], spans["heaps"] + d["huge"]["heaps"])
    equal("heaps' live", heaps["held"], add(heaps, "live", "free"))
    process = d["process"]
    for now, peak in (("used", "used_peak"), ("resident", "resident_peak")):
        if process[now] > process[peak]:
            wrong.append(f"{now} {process[now]} is more than its peak, {process[peak]}")
    if not process["resident"]:
        wrong.append("nothing is resident")
    wrong += [f"negative: {path}" for path in negative(d, "")]
    return wrong


def negative(value: object, path: str) -> list[str]:
    """Members below 0, or beyond what any process has: an unsigned number that went below 0."""
    if isinstance(value, dict):
        return [p for k, v in value.items() for p in negative(v, f"{path}.{k}")]
    if isinstance(value, list):
        return [p for i, v in enumerate(value) for p in negative(v, f"{path}[{i}]")]
    return [path] if isinstance(value, int) and not 0 <= value < 1 << 60 else []


def check_map(d: dict, read: "callable") -> list[str]:
    """The span map against the figures; read(offset, count) gives the map's bytes."""
    seen = dict.fromkeys(["slabs", "extents", "extents_cached", "heaps", "claimed", "guards", "free_dirty", "free_clean"], 0)
    by_class = [0] * CLASSES
    kinds = {0x80: "extents", 0x81: "extents", 0x82: "extents_cached", 0x83: "heaps", 0xfc: "claimed", 0xfd: "guards", 0xfe: "free_dirty",
             0xff: "free_clean"}
    wrong = []
    for region in d["regions"]:
        codes = read(region["map_offset"], region["spans"])
        if len(codes) != region["spans"] or region["spans"] != (region["limit"] // SPAN) - region["first_span"]:
            wrong.append(f"region {region}: {len(codes)} codes")
        for code in set(codes):
            if code < CLASSES:
                by_class[code] += codes.count(code) * SPAN
                seen["slabs"] += codes.count(code) * SPAN
            elif code in kinds:
                seen[kinds[code]] += codes.count(code) * SPAN
            else:
                wrong.append(f"code {code:#x} means nothing")
    wrong += [f"map: {seen[k]} bytes of {k}, not {d['spans'][k]}" for k in seen if seen[k] != d["spans"][k]]
    wrong += [f"map: class {i}" for i, row in enumerate(d["classes"]) if row["slab_bytes"] != by_class[i]]
    return wrong


if __name__ == "__main__":
    with open(sys.argv[1], encoding="ascii") as file:
        found = check(json.load(file))
    print("\n".join(found) or "all sums hold")
    sys.exit(bool(found))
