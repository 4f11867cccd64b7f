"""The checks themselves: each must fail on what it is there to find."""
from subprocess import CompletedProcess

import check

GOOD = "Throughput = 12 ops/s [iter=5 check=0f] time=0.004s\n"


def done(status: int, out: str = "", err: str = "") -> CompletedProcess:
    return CompletedProcess(["bench_x"], status, out, err)


def main() -> None:
    assert check.labels(GOOD) == {"iter": "5", "check": "0f"}
    assert check.labels(GOOD.replace("12", "12.345")) is not None
    assert check.labels(GOOD + "RSS = 5 kB, live = 4 kB\n") is not None
    for bad in ("", GOOD * 2, GOOD.replace("12", "0"), GOOD.replace("ops/s", "op/s"), "x\n" + GOOD, GOOD.replace("=5", ""),
                GOOD.replace("12", "12.5"), GOOD.replace("12", "1234.567"), GOOD.replace("12", "0.000")):
        assert check.labels(bad) is None, bad

    assert not check.result_problems("run", done(0, GOOD))
    assert check.result_problems("run", done(1, GOOD))
    assert check.result_problems("run", done(0, "done\n"))

    line = "bench_x: argument iters: 'x' is not a whole number from 1 to 9\n"
    assert not check.rejection_problems("iters", done(2, err=line))
    assert check.rejection_problems("iters", done(1, err=line))
    assert check.rejection_problems("iters", done(2, err=line * 2))
    assert check.rejection_problems("iters", done(2, err=""))
    assert check.rejection_problems("iters", done(2, GOOD, line))
    assert check.rejection_problems("slots", done(2, err=line))

    assert not check.readme_problems("| `bench_x` | a |\n", ["bench_x"])
    assert check.readme_problems("| `bench_x` | a |\n", ["bench_x", "bench_y"])


if __name__ == "__main__":
    main()
