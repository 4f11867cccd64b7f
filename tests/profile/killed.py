"""killed.py LIBRARY GROUP LEAK KILLS [SEED]: programs that the kernel ends at their control group's limit leave a heap profile that says
what held the memory (HAKMEM_HEAP_PROFILE_NEAR_LIMIT). Each is another one: limit, sizes, threads, pace. 77: no such group can be made."""
import bisect
import random
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import reading

LIBRARY, GROUP, LEAK, KILLS, SEED = [*sys.argv[1:], "0"][:5]
KEPT, MIB = 3, 1 << 20
MILLISECONDS = 1 << 17
ADDED = 8 if "hardened" in Path(LIBRARY).name else 0  # to each size, see docs/heap-profile.md
CLOCK_MS = 10  # steps of the clock that the profile's time is of


class Log:
    """What was leaked when."""

    def __init__(self, path: Path, block: int) -> None:
        self.leak, self.leak_bytes, self.start_ms, *leaked = struct.unpack(f"={3 + MILLISECONDS}Q", path.read_bytes())
        known = [(ms, sum_) for ms, sum_ in enumerate(leaked) if sum_ != 0]
        known = [(ms, sum_ // block * (block + ADDED)) for ms, sum_ in known]
        self.times = [ms for ms, _ in known]
        self.sums = [max(s for _, s in known[max(0, i - 4):i + 1]) for i in range(len(known))]  # threads store theirs late

    def at(self, unix_ms: int) -> int:
        place = bisect.bisect_right(self.times, unix_ms - self.start_ms)
        return self.sums[place - 1] if place > 0 else 0


def kill(seed: int, folder: Path) -> dict:
    draw = random.Random(f"killed {SEED} {seed}")
    mib, threads = draw.choice([64, 96, 128, 192, 256]), draw.choice([1, 1, 2, 4])
    block, pace = draw.choice([64, 1000, 20_000, 100_000, 1_000_000, 5_000_000]), draw.choice([0, 0, 100, 300, 1000])
    log = folder / "log"
    with log.open("wb") as file:
        file.truncate(8 * (3 + MILLISECONDS))
    run = subprocess.run([GROUP, str(mib), "env", f"LD_PRELOAD={LIBRARY}", f"HAKMEM_HEAP_PROFILE_NEAR_LIMIT={KEPT}",
                          f"HAKMEM_HEAP_PROFILE_PREFIX={folder}/p", "HAKMEM_HEAP_PROFILE_FORMAT=json", LEAK, str(log), str(threads),
                          str(block), str(pace)], capture_output=True, text=True, timeout=120)
    if run.returncode == 77:
        print(run.stdout)
        sys.exit(77)
    assert "was ended by signal 9" in run.stdout, run.stdout + run.stderr
    assert run.stderr == "", run.stderr
    told = Log(log, block)
    files = sorted(folder.glob("p.*.json"), key=lambda path: int(path.name.split(".")[2]))
    result = {"what": f"{mib} MiB, {threads} threads, blocks of {block}, pace {pace}", "limit": mib * MIB, "truth": told.sums[-1], "files": len(files),
              "halves": len(list(folder.glob("*.part")))}
    if not files:
        return result
    profiles = [reading.as_json(path.read_text()) for path in files]  # strict: whole
    d = profiles[-1]
    live, deviation = d["live"]["bytes"], d["live"]["bytes_variance"] ** 0.5
    least, most = told.at(d["taken_ms"] - 1) - threads * block, told.at(d["taken_ms"] + CLOCK_MS)  # a block is counted before it is there
    of_leak = sum(stack["live"][0] for stack in d["stacks"] if any(0 < pc - told.leak <= told.leak_bytes for pc in stack["pcs"]))
    distance = max(least - live, live - most, 0)
    result |= {"live": live, "deviation": deviation, "then": (least, most), "off": distance / deviation if deviation else 0.0,
               "number": int(files[-1].name.split(".")[2]), "since": (result["truth"] - min(max(live, least), most)) / result["limit"],
               "share": of_leak / live, "right": of_leak > 0.5 * live}
    return result


def main() -> int:
    results = []
    for seed in range(int(KILLS)):
        with tempfile.TemporaryDirectory() as folder:
            r = kill(seed, Path(folder))
        results.append(r)
        print(seed, r["what"] + ":", {k: v for k, v in r.items() if k != "what"}, flush=True)
    with_file = [r for r in results if r["files"] > 0]
    held = sum(r["off"] <= 1.96 for r in with_file)
    since = sorted(r["since"] for r in with_file)
    spread = [(r["live"] - sum(r["then"]) / 2) / r["deviation"] for r in with_file if r["then"][1] - r["then"][0] < r["deviation"]]
    print(f"estimate less the truth, in deviations: mean {sum(spread) / len(spread):+.2f}, mean square {sum(x * x for x in spread) / len(spread):.2f}")
    print(f"{len(results)} kills: {len(with_file)} with a whole file, {sum(r['halves'] for r in results)} half ones beside; live bytes within the "
          f"95 % interval of the truth: {held}; the leak named: {sum(r['right'] for r in with_file)}; leaked since the last file, in % of the "
          f"limit: median {100 * since[len(since) // 2]:.1f}, most {100 * since[-1]:.1f}")
    assert len(with_file) == len(results), "a kill left none"
    assert all(r["files"] <= KEPT for r in results), "files too many"
    assert all(r["right"] for r in results), "something else is named"
    assert all(r["off"] <= 5 for r in results), "far from the truth"
    assert held >= 0.88 * len(results) - 1, "intervals are too short"
    return 0


if __name__ == "__main__":
    sys.exit(main())
