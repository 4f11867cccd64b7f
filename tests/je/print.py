"""print.py PROGRAM: malloc_stats_print's JSON is JSON and adds up; its letters leave parts out; its text has the same sums."""
import json
import re
import subprocess
import sys

program = sys.argv[1]


def run(options: str) -> str:
    return subprocess.run([program, options], check=True, capture_output=True, text=True).stdout


whole = json.loads(run("J"))["jemalloc"]
assert set(whole) == {"version", "config", "opt", "prof", "arenas", "stats", "stats.arenas"}, set(whole)
assert whole["config"]["stats"] is True and whole["opt"]["dirty_decay_ms"] == 1000 and whole["opt"]["thp"] == "default"
assert len(whole["arenas"]["bin"]) == whole["arenas"]["nbins"] and len(whole["arenas"]["lextent"]) == whole["arenas"]["nlextents"]
assert whole["arenas"]["narenas"] == 2
arenas = whole["stats.arenas"]
assert set(arenas) == {"0", "1", "merged"}, set(arenas)
for name, arena in arenas.items():
    assert arena["mutexes"] == {} and arena["extents"] == [], name
    assert len(arena["bins"]) == whole["arenas"]["nbins"] and len(arena["lextents"]) == whole["arenas"]["nlextents"], name
merged = arenas["merged"]
stats = whole["stats"]
assert stats["allocated"] == merged["small"]["allocated"] + merged["large"]["allocated"] > 25_000_000, stats
assert stats["active"] == merged["pactive"] * 4096 >= stats["allocated"] and stats["resident"] > stats["active"] < stats["mapped"], stats
assert sum(b["curregs"] for b in merged["bins"]) == merged["small"]["nmalloc"] - merged["small"]["ndalloc"] >= 280
assert sum(e["curlextents"] for e in merged["lextents"]) >= 700

without = json.loads(run("Jgmbl"))["jemalloc"]
assert set(without) == {"stats", "stats.arenas"}, set(without)
assert set(without["stats.arenas"]) == {"0", "1"} and "bins" not in without["stats.arenas"]["0"] and "lextents" not in without["stats.arenas"]["0"]
assert set(json.loads(run("Ja"))["jemalloc"]["stats.arenas"]) == {"merged"}

text = run("")
assert text.startswith("___ Begin jemalloc statistics ___\n") and text.endswith("--- End jemalloc statistics ---\n")
sums = re.search(r"^Allocated: (\d+), active: (\d+), metadata: (\d+) \(n_thp 0\), resident: (\d+), mapped: (\d+), retained: (\d+)$", text, re.MULTILINE)
assert sums and abs(int(sums[1]) / stats["allocated"] - 1) < 0.01, text
assert "\nMerged arenas stats:\n" in text and "\narenas[0]:\n" in text and "  opt.narenas: 1\n" in text and "  bin[6]: size 112\n" in text
assert "arenas[0]:" not in run("a") and "opt." not in run("g") and "bin[" not in run("b")
