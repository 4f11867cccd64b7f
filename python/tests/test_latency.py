"""Latency of single calls: histograms, the program, the command and its files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from small_build import BENCH, assert_in_order, compile_c

from hakmem.cli import main
from hakmem.commands.tail import parse_sizes, size_text
from hakmem.errors import UserError
from hakmem.measuring import latency_histogram
from hakmem.measuring.latency_histogram import Histogram
from hakmem.running.launching import run_once

# Prints the bucket of each argument as the bench programs see it.
PRINTER = """
#include <stdlib.h>
#include "histogram.h"
int main(int argc, char **argv) {
    static histogram h;
    for (int i = 1; i < argc; i++) histogram_add(&h, strtoull(argv[i], NULL, 10));
    histogram_print(&h, "x");
    return 0;
}
"""


@pytest.fixture(scope="session")
def latency_build(build: Path) -> Path:
    latency = BENCH / "latency"
    sources = [latency / f"{name}.c" for name in ("bench_latency", "clock", "histogram")]
    compile_c(build / "bench" / "bench_latency", [*sources, BENCH / "bench.c"],
              f"-I{BENCH}", "-pthread", "-fno-builtin")  # fmt: skip
    printer = build / "printer.c"
    printer.write_text(PRINTER)
    compile_c(build / "printer", [printer, latency / "histogram.c", BENCH / "bench.c"],
              f"-I{BENCH}", f"-I{latency}", "-pthread")  # fmt: skip
    return build


def run(*arguments: str):
    return CliRunner().invoke(main, list(arguments))


def counted(build: Path, values: list[int]) -> Histogram:
    ran = run_once([str(build / "printer"), *map(str, values)])
    assert ran.problem == "", ran.stderr
    return latency_histogram.parse(ran.stdout)[1]["x"]


@pytest.mark.turns
def test_percentiles_agree_with_numpy(latency_build):
    generator = np.random.default_rng(1)
    values = [int(v) for v in generator.lognormal(6, 2, 5003)]
    found = counted(latency_build, values)
    assert found.total == 5003
    shares = (0.01, 0.5, 0.9, 0.99, 0.999, 1.0)
    exact = np.percentile(values, [100 * s for s in shares], method="inverted_cdf")
    assert found.percentiles(shares) == pytest.approx(list(exact), rel=0.004, abs=0.01)
    assert found.largest == pytest.approx(max(values), rel=0.008)


def test_buckets_hold_their_values_without_gap_or_overlap(latency_build):
    edges = [1 << bit for bit in range(48)]
    values = sorted({v + d for v in edges for d in (-1, 0, 1)})
    found = counted(latency_build, values)
    ordered = sorted(found.counts)
    for value in values:
        (bucket,) = [b for b in ordered if b[0] <= value <= b[1]]
        assert bucket[1] - bucket[0] <= value / 128
    for (_, high), (low, _) in zip(ordered, ordered[1:]):
        assert high < low


def test_values_beyond_the_largest_bucket_count_as_the_largest(latency_build):
    found = counted(latency_build, [(1 << 64) - 1, 1 << 48])
    assert found.total == 2
    assert len(found.counts) == 1
    assert found.largest == (1 << 48) - 1


def test_merging_adds_counts_and_keeps_the_parts():
    one, two = Histogram(), Histogram()
    one.add(1, 1, 3)
    two.add(1, 1, 2)
    two.add(5, 6, 5)
    one.merge(two)
    assert (one.counts, one.total) == ({(1, 1): 5, (5, 6): 5}, 10)
    assert two.total == 7
    assert one.percentiles([0.5, 0.51, 0.9]) == [1, 5.5, 5.5]


def test_percentile_needs_calls_beyond_it():
    few = Histogram({(1, 1): 999})
    assert few.supported(0.9)
    assert not few.supported(0.99)
    assert Histogram({(1, 1): 1000}).supported(0.99)


def test_sizes_are_read_with_their_units():
    assert parse_sizes("16, 4k,1M,2KiB") == [16, 4096, 1 << 20, 2048]
    for text in ("", "0", "4x", "-1", "1k,1024", "2048M", "1.5k", "k"):
        with pytest.raises(UserError, match="--sizes"):
            parse_sizes(text)
    assert [size_text(n) for n in (100, 2048, 3 << 20)] == ["100 B", "2 KiB", "3 MiB"]


def test_every_step_is_one_timed_call(latency_build):
    command = [str(latency_build / "bench" / "bench_latency"), "2000", "20", "2", "7", "24", "5000"]
    ran = run_once(command)
    assert ran.problem == "", ran.stderr
    values, found = latency_histogram.parse(ran.stdout)
    assert set(found) == {"malloc:24", "free:24", "malloc:5000", "free:5000"}
    assert sum(h.total for h in found.values()) == 2 * 2000
    # A slot is filled before it is emptied: of two threads' 10 slots a size at most 20 stay full.
    for size in (24, 5000):
        left = found[f"malloc:{size}"].total - found[f"free:{size}"].total
        assert 0 <= left <= 20
    assert 1e8 < float(values["ticks_per_second"]) < 1e10
    assert int(values["overhead_ticks"]) > 0
    assert int(values["step_ticks"]) >= 1
    assert int(values["involuntary_switches"]) >= 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("0",), "argument steps: '0'"),
        (("10", "4"), "argument slots: 4 is less than the number of sizes"),
        (("10", "10", "1", "1", "16", "16"), "argument size: 16 is given twice"),
        (("10", "10", "1", "1", "x"), "argument size: 'x'"),
    ],
)
def test_bad_arguments_are_named(latency_build, arguments, message):
    ran = run_once([str(latency_build / "bench" / "bench_latency"), *arguments])
    assert (ran.exit_status, message in ran.stderr) == (2, True)


@pytest.mark.turns
def test_tail_prints_its_table_and_writes_all_figures(latency_build, tmp_path):
    floor = latency_build / "bench" / "libfloor.so"
    ran = run("tail", "--pairs", "5", "--steps", "2000", "--sizes", "64,1k", "--seed", "4",
              "--with", "glibc", "--lib", f"other={floor}",
              "--json", str(tmp_path / "a.json"))  # fmt: skip
    # The second one serves another malloc's blocks: it has figures, and a status.
    assert "a maximum means nothing" in " ".join(ran.output.split())
    document = json.loads((tmp_path / "a.json").read_text())
    assert len(document["groups"]) == 2 * 2 * 2
    for group in document["groups"]:
        assert group["calls"] == sum(count for _, _, count in group["buckets_ticks"])
        assert group["ns"]["p99.99"] is None
    for name in ("glibc", "other"):
        calls = sum(g["calls"] for g in document["groups"] if g["allocator"] == name)
        assert calls == 5 * 2000
    assert_in_order(ran.output, "p50", "How it was measured", "host ")


def test_tail_refuses_what_it_cannot_do(latency_build):
    bad_size = run("tail", "--sizes", "4q", "--with", "glibc")
    assert (bad_size.exit_code, "'4q' is no size" in bad_size.output) == (2, True)
    assert run("tail", "--pairs", "4", "--with", "glibc").exit_code == 2
