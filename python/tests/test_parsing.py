from __future__ import annotations

import pytest
from click.testing import CliRunner

from hakmem.cli import main
from hakmem.errors import UserError
from hakmem.measuring.rotation import OPS_PER_SECOND, WALL_TIME, custom_metric, require_metric
from hakmem.options import parse_cpu_list, resolve_cpus
from hakmem.running.launching import Outcome, parse_summary
from hakmem.running.proof import BINDING, effective_settings, parse_stats


def outcome(stdout: str = "", stderr: str = "", wall_s: float = 1.0) -> Outcome:
    return Outcome(0, 0, wall_s, 1.0, 1000, 10, 0, stdout, stderr)


def test_throughput_line():
    line = "Throughput = 59200000 ops/s [iter=10000000 ws=400] time=0.169s\n"
    assert OPS_PER_SECOND.read(outcome(line)) == 59_200_000
    assert OPS_PER_SECOND.read(outcome("Throughput = 1.5e+07 ops/s")) == 1.5e7
    assert OPS_PER_SECOND.read(outcome("nothing of the kind")) is None


def test_costs_are_lower_for_the_better():
    assert OPS_PER_SECOND.cost(200.0) < OPS_PER_SECOND.cost(100.0)
    assert WALL_TIME.cost(1.0) < WALL_TIME.cost(2.0)


def test_custom_metric_reads_its_first_group_from_either_stream():
    metric = custom_metric(r"took (\d+) ms", lower_is_better=True)
    assert metric.read(outcome(stderr="took 35 ms")) == 35
    assert metric.cost(35) == 35
    assert custom_metric(r"(\w+)", lower_is_better=False).read(outcome("apples")) is None


def test_expression_without_a_group_is_refused():
    with pytest.raises(UserError, match=r"--metric: '\\d\+' has no group"):
        require_metric(r"\d+", False)
    with pytest.raises(UserError, match="--lower-is-better is the direction of --metric"):
        require_metric(None, True)
    require_metric(r"(\d+)", True)
    require_metric("wall", False)
    # A group that took no part in the match has no figure.
    assert custom_metric(r"x|(\d+)", lower_is_better=False).read(outcome("x")) is None


def test_bad_expression_is_named():
    with pytest.raises(UserError, match="--metric"):
        custom_metric("(", lower_is_better=False)


STRACE = """\
% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 60.00    0.000300          30        10         2 openat
 40.00    0.000200          20        11           mmap
------ ----------- ----------- --------- --------- ----------------
100.00    0.000500          23        21         2 total
"""


def test_system_calls_are_summed_with_and_without_errors():
    assert parse_summary(STRACE) == 21
    assert parse_summary("strace: ptrace: Operation not permitted") is None


def test_counter_lines_of_all_processes_are_summed():
    text = "x\n[SS_OS_STATS] alloc=3 free=0 madvise=0\n[SS_OS_STATS] alloc=4 free=1 madvise=0\n"
    assert parse_stats(text) == (7, 2)
    assert parse_stats("[SS_OS_STATS] nothing") == (0, 0)


def test_effective_settings_fold_classes_and_leave_out_the_proofs_own():
    said = "\n".join(
        f"hakmem: {line}"
        for line in (
            "HAKMEM_PROFILE=lean",
            "HAKMEM_VERBOSE=1",
            "HAKMEM_TINY_PREWARM_C1=0",
            "HAKMEM_TINY_PREWARM_C2=0",
            "HAKMEM_TINY_PREWARM_C3=64",
        )
    )
    assert effective_settings(said) == (
        "HAKMEM_PROFILE=lean",
        "HAKMEM_TINY_PREWARM_C<2 classes>=0",
        "HAKMEM_TINY_PREWARM_C3=64",
    )


def test_loader_log_names_the_provider_of_malloc():
    line = "  12:\tbinding file ls [0] to /lib/libx.so [0]: normal symbol `malloc' [GLIBC_2.2.5]"
    assert BINDING.search(line)[1] == "/lib/libx.so"
    assert BINDING.search(line.replace("malloc", "malloc_trim")) is None


def test_refused_preload_is_a_problem():
    said = (
        "ERROR: ld.so: object 'libx.so' from LD_PRELOAD cannot be preloaded "
        "(cannot open shared object file): ignored."
    )
    assert outcome(stderr=said).problem == "not loaded: cannot open shared object file"


@pytest.mark.turns
@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e999"])
@pytest.mark.parametrize(
    "words",
    [
        ("compare", "--timeout"),
        ("compare", "--idle"),
        ("explain", "--after"),
        ("explain", "--every"),
        ("top", "--interval"),
    ],
)
def test_seconds_are_numbers(words, value):
    found = CliRunner().invoke(main, [*words, value, "--", "/bin/true"])
    assert found.exit_code == 2, found.output
    assert f"'{words[1]}'" in found.output


def test_cpu_lists():
    assert parse_cpu_list("0,2-4") == {0, 2, 3, 4}
    assert resolve_cpus("none") is None
    for bad in ("x", "-1", "1,,2", "99999", "3-1", "0-9999999999"):
        with pytest.raises(UserError, match="--cpu"):
            resolve_cpus(bad)
