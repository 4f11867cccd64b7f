from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
import urllib.parse
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from fake_process import fake_process
from prometheus_client import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from rich.console import Console

from hakmem.cli import main
from hakmem.commands import explain
from hakmem.commands.top import Found, picture
from hakmem.processes import live_figures, metrics, page_shape, stats_page
from hakmem.processes.accounting import explain_process
from hakmem.processes.live_figures import Look, class_rows, heap_rows, look, rates, row
from hakmem.processes.stats_page import Snapshot, UnreadablePage

COMMAND = [sys.executable, "-c", "from hakmem.cli import main; main()", "top"]
DASHBOARD = Path(__file__).resolve().parents[2] / "docs" / "grafana" / "hakmem.json"
# Debian's; its own files in a folder of the test.
PROMETHEUS, PROMTOOL = shutil.which("prometheus"), shutil.which("promtool")
# What Grafana puts in the place of its variables.
VARIABLES = {"$comm": ".*", "$pid": ".*", "$__rate_interval": "10s"}


def run(*arguments: str):
    return CliRunner().invoke(main, ["top", *arguments])


def changed(before: Look, seconds: float, **counters: int) -> Look:
    """A later look, with counters changed."""
    figures = before.figures | {"counters": before.figures["counters"] | counters}
    old = before.snapshot
    snapshot = Snapshot(
        old.pid, old.name, old.taken_ms + round(seconds * 1000), figures, old.spans, old.map_offset
    )
    return Look(snapshot, before.rss, before.read_s + seconds)


@pytest.fixture
def fake():
    with fake_process() as process:
        yield process


def test_row_has_the_figures_of_the_page(fake):
    found = row(look(fake.pid), None)
    assert (found.cached, found.depots, found.slab_free) == (20_000, 4_000, 36_000)
    assert found.live == 60_000 + (3 << 16) + (3 << 20) + 150_000
    assert found.kept == (1 << 16) + (1 << 20)
    assert (found.dirty, found.purges) == (1 << 16, 3)
    assert found.budget == "target 64 MB: step 1"
    assert found.rates is None
    assert found.rss > 4 << 20


def test_memory_and_its_peaks_are_those_of_the_page(fake):
    found = row(look(fake.pid), None)
    assert (found.used, found.used_peak, found.rss_peak) == (9 << 20, 11 << 20, 1 << 33)
    console = Console(width=200, file=io.StringIO())
    console.print(picture(Found([found]), console.width))
    assert "8,192.0" in console.file.getvalue()
    samples = samples_of(metrics.text(fake.pid))
    assert samples["hakmem_used_bytes"] == 9 << 20
    assert samples["hakmem_used_peak_bytes"] == 11 << 20
    assert samples["hakmem_resident_in_page_bytes"] == 5 << 20
    assert samples["hakmem_resident_peak_bytes"] == 1 << 33


def test_peak_is_not_below_what_is_resident_now(fake):
    seen = look(fake.pid)
    figures = seen.figures | {"process": seen.figures["process"] | {"resident_peak": 4096}}
    older = replace(seen, snapshot=replace(seen.snapshot, figures=figures))
    assert row(older, None).rss_peak == older.rss


def test_page_of_an_older_library_has_no_peaks():
    with fake_process("older") as process:
        seen = look(process.pid)
        found = row(seen, None)
        assert (found.used, found.used_peak, found.rss_peak) == (None, None, None)
        shown = run("--once", "--interval", "0.1", str(process.pid))
        assert shown.exit_code == 0, shown.output
        samples = samples_of(metrics.text(process.pid))
    assert "hakmem_live_bytes" in samples
    assert [n for n in samples if "_used_" in n or "peak" in n] == []


def samples_of(text: str) -> dict[str, float]:
    families = text_string_to_metric_families(text)
    return {sample.name: sample.value for family in families for sample in family.samples}


def test_rates_are_of_the_time_between_the_pages(fake):
    before = look(fake.pid)
    now = changed(before, 2, alloc=before.figures["counters"]["alloc"] + 50)
    found = rates(now, before)
    assert (found.seconds, found.taken, found.returned) == (2, 25, 0)
    # What the page was at rest before the first look does not count.
    rested = replace(before, read_s=before.snapshot.taken_ms / 1000 + 60)
    later = changed(before, 61, alloc=before.figures["counters"]["alloc"] + 50)
    assert rates(later, rested).seconds == pytest.approx(1)


def test_counter_that_wraps_gives_no_negative_rate(fake):
    before = look(fake.pid)
    assert before.figures["counters"]["slow_paths"] == (1 << 32) - 1000
    assert rates(changed(before, 1, slow_paths=500), before).slow_paths == 1500


def test_page_at_rest_gives_zero(fake):
    before = look(fake.pid)
    found = rates(replace(before, read_s=before.read_s + 5), before)
    assert (found.taken, found.slow_paths, found.hit_rate) == (0, 0, None)


def test_hit_rates_are_of_the_interval(fake):
    before = look(fake.pid)
    time.sleep(0.02)
    fake.tell("grow")
    now = look(fake.pid)
    # 100 hits and 10 misses more; since the start it would be 1,000 of 1,110.
    assert rates(now, before).hit_rate == pytest.approx(100 / 110)
    [one] = class_rows(now, before)
    assert one.hit_rate == pytest.approx(100 / 110)
    assert one.hits == pytest.approx(10 * one.misses)
    assert (one.live, one.cached, one.block_size) == (60_000, 20_000, 96)


def test_once_prints_a_table_and_writes_it(fake, tmp_path):
    path = tmp_path / "top.json"
    found = run("--once", "--interval", "0.1", "--json", str(path), str(fake.pid))
    assert found.exit_code == 0, found.output
    assert "\x1b" not in found.output
    assert "target 64 MB" in found.output
    assert str(fake.pid) in found.output
    document = json.loads(path.read_text())
    assert document["made_by"] == "hakmem top"
    assert document["processes"][0]["pid"] == fake.pid
    assert document["processes"][0]["rates"]["taken"] == 0
    assert document["classes"][0]["live"] == 60_000


def test_hits_are_off_where_they_are_not_counted(fake):
    before = look(fake.pid)
    figures = json.loads(json.dumps(before.figures))
    figures["settings"]["front_metrics"] = False
    for each in figures["classes"]:
        each.update(hits=None, misses=None, refills=None, flushes=None)
    off = replace(before, snapshot=replace(before.snapshot, figures=figures))
    later = changed(off, 1, alloc=200)
    assert row(later, off).rates.hit_rate is None
    [one] = class_rows(later, off)
    assert (one.hits, one.misses, one.hit_rate) == (None, None, None)
    console = Console(width=170, file=io.StringIO())
    console.print(picture(Found([row(later, off)], [one]), console.width))
    assert console.file.getvalue().count(" off") == 4


def test_all_processes_are_shown_largest_first(fake):
    with fake_process() as other:
        found = run("--once", "--interval", "0.1")
    assert found.exit_code == 0, found.output
    assert str(fake.pid) in found.output
    assert str(other.pid) in found.output


def test_process_that_ends_meanwhile_is_left_out(fake):
    with fake_process() as other:
        both = live_figures.look_around()[0]
        assert {fake.pid, other.pid} <= set(both)
    assert other.pid not in live_figures.look_around()[0]


SPOILT = ("over", "large", "beyond", "deep", "deeper", "digits", "nan", "infinite", "negative",
          "text", "list", "class", "half", "binary")  # fmt: skip


@pytest.mark.turns
@pytest.mark.parametrize("kind", SPOILT)
def test_page_of_a_stranger_ends_nothing(fake, kind):
    """Any user can write one, and root looks at all."""
    with fake_process() as stranger:
        stranger.tell(f"spoil {kind}")
        with pytest.raises(UnreadablePage):
            look(stranger.pid)
        looks, unseen = live_figures.look_around()
        assert fake.pid in looks
        assert stranger.pid in unseen.unreadable
        found = run("--once", "--interval", "0.1")
        assert (found.exit_code, found.exception) == (0, None)
        assert f"page cannot be read: process {stranger.pid}" in found.output
        assert "target 64 MB" in found.output
        assert f'pid="{fake.pid}"' in metrics.text()
        alone = run("--once", str(stranger.pid))
        assert alone.exit_code == 1
        assert f"process {stranger.pid}" in alone.output


def test_pages_that_are_never_whole_are_waited_for_together(fake, monkeypatch):
    monkeypatch.setattr(stats_page, "PATIENCE_S", 0.2)
    asked = []
    real = stats_page.read
    monkeypatch.setattr(stats_page, "read", lambda *a, **k: (asked.append(a[1]), real(*a, **k))[1])
    with fake_process() as one, fake_process() as other:
        one.tell("odd")
        other.tell("odd")
        looks, unseen = live_figures.look_around()
    assert fake.pid in looks
    assert {one.pid, other.pid} <= set(unseen.unreadable)
    assert len(set(asked)) == 1


def test_page_that_is_still_empty_is_told(fake):
    """Of a process that has not come to write it: beside others, and alone."""
    with fake_process() as young:
        young.tell("empty")
        found = run("--once", "--interval", "0.1")
        assert found.exit_code == 0, found.output
        assert f"page is still empty: process {young.pid}" in found.output
        assert str(fake.pid) in found.output
        alone = run("--once", str(young.pid))
        assert (alone.exit_code, "its page is empty yet" in alone.output) == (1, True)


def test_process_that_has_set_up_no_size_class_is_shown():
    with fake_process() as young:
        young.tell("unset")
        found = run("--once", "--interval", "0.1", str(young.pid))
        assert look(young.pid).figures["classes"] == []
    assert found.exit_code == 0, found.output
    assert re.search(rf"^ +{young.pid} ", found.output, re.MULTILINE)


@pytest.mark.turns
def test_user_who_may_read_no_process_is_told_so():
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    become = "import os\nfrom hakmem.commands import top\nos.setgid(65534); os.setuid(65534)\n"
    command = [sys.executable, "-c", f"{become}top.top()", "--once"]
    with fake_process():
        found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 1
    assert re.search(r"; \d+ processes may not be read, .*: be their user, or root$", found.stderr)


def test_name_of_a_process_is_shown_without_what_a_terminal_obeys(tmp_path):
    with fake_process("escape") as stranger:
        found = run("--once", "--interval", "0.1", str(stranger.pid))
        text = metrics.text(stranger.pid)
        account = explain_process(stranger.pid)
    assert found.exit_code == 0, found.output
    assert "\x1b" not in found.output + text
    assert "\x07" not in found.output + text
    assert r"\x1b[31m\n\x07" in found.output
    families = text_string_to_metric_families(text)
    assert {s.labels["comm"] for f in families for s in f.samples if "comm" in s.labels} == {
        r"\x1b[31m\n\x07" + '$\\"Z'
    }
    explain.write_picture(tmp_path / "a.svg", [account])
    assert b"\x1b" not in (tmp_path / "a.svg").read_bytes()


def test_only_memory_is_opened(tmp_path):
    """A link that reads like a page may be of a pipe, where opening would wait."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_bytes(b"hakmemS1" * 8)
    for name in ("pipe", "file"):
        with pytest.raises(OSError, match="no memory"):
            stats_page.open_memory(tmp_path / name)


@pytest.mark.turns
def test_view_goes_on_until_the_process_ends():
    with fake_process() as fake:
        ours = subprocess.Popen([*COMMAND, "--interval", "0.1", str(fake.pid)], text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
        tables = 0
        for line in ours.stdout:
            tables += "target 64 MB" in line
            if tables == 3:
                break
        fake.process.kill()
        fake.process.wait()
        _, said = ours.communicate(timeout=60)
    assert ours.returncode == 0
    assert said == f"hakmem top: process {fake.pid} has ended\n"


@pytest.mark.turns
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_view_ends_with_an_interrupt(fake, number):
    ours = subprocess.Popen([*COMMAND, "--interval", "0.1"], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)  # fmt: skip
    try:
        assert select.select([ours.stdout], [], [], 60)[0]
        ours.send_signal(number)
        _, said = ours.communicate(timeout=60)
    finally:
        ours.kill()
        ours.wait()
    assert (ours.returncode, said) == (0, "")


@pytest.mark.turns
def test_view_fills_a_terminal_and_gives_it_back(fake):
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 90, 0, 0))
    process = subprocess.Popen([*COMMAND, "--interval", "0.1", str(fake.pid)], stdin=theirs,
                               stdout=theirs, stderr=theirs, start_new_session=True)  # fmt: skip
    os.close(theirs)
    shown, end = b"", time.monotonic() + 60
    try:
        while shown.count(str(fake.pid).encode()) < 3:
            assert select.select([ours], [], [], 60)[0]
            shown += os.read(ours, 65536)
            assert time.monotonic() < end
        process.send_signal(signal.SIGINT)
        while select.select([ours], [], [], 60)[0]:
            try:
                shown += os.read(ours, 65536)
            except OSError:
                break
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert shown.startswith(b"\x1b[?1049h")
    assert b"\x1b[?1049l" in shown
    # Nothing is cut off in a narrow terminal.
    assert "…".encode() not in shown


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (("--once", "--prometheus", "-"), 2, "--once and --prometheus exclude each other"),
        (("--json", "a.json"), 2, "--json is for --once"),
        (("--interval", "0"), 2, "--interval"),
        (("--serve", "70000"), 2, "--serve"),
        (("--prometheus", "/nowhere/a.prom"), 2, "there is no folder /nowhere"),
        (("no-number",), 2, "no-number"),
        (("--once", "999999999"), 1, "there is no process 999999999"),
        (
            ("--once", str(os.getpid())),
            1,
            "has no page (there is no hakmem in it): start it with HAKMEM_STATS_PAGE=1",
        ),
        (("--serve", "9999", "--address", "192.0.2.1"), 1, "192.0.2.1:9999"),
    ],
)
def test_errors_are_one_line(arguments, status, told):
    found = run(*arguments)
    assert found.exit_code == status, found.output
    assert told in found.output
    assert "Traceback" not in found.output


def test_once_without_any_process_is_an_error(monkeypatch):
    monkeypatch.setattr(live_figures.stats_page, "processes", lambda *_: iter(()))
    found = run("--once")
    assert found.exit_code == 1
    assert "HAKMEM_STATS_PAGE=1" in found.output


def test_openmetrics_text_is_valid(fake, tmp_path):
    path = tmp_path / "hakmem.prom"
    found = run("--prometheus", str(path), str(fake.pid))
    assert (found.exit_code, found.output) == (0, "")
    families = {f.name: f for f in text_string_to_metric_families(path.read_text())}
    assert set(families) == {"hakmem_processes", *(kind.name for kind in metrics.KINDS)}
    for name, family in families.items():
        assert family.documentation
        for sample in family.samples:
            assert sample.name == name + ("_total" if family.type == "counter" else "")
            if name != "hakmem_processes":
                assert sample.labels["pid"] == str(fake.pid)
                assert sample.labels["comm"]
    live = {s.labels["owner"]: s.value for s in families["hakmem_live_bytes"].samples}
    assert live == {"slabs": 60_000, "extents": 3 << 16, "huge": 3 << 20, "sampled": 0,
                    "heaps": 150_000}  # fmt: skip
    [hits] = families["hakmem_cache_hits"].samples
    assert (hits.labels["block_bytes"], hits.labels["aligned"], hits.value) == ("96", "false", 900)


@pytest.mark.skipif(PROMTOOL is None, reason="no promtool: Debian's package prometheus has it")
def test_names_are_as_prometheus_wants_them(fake):
    text = generate_latest(metrics.registry(fake.pid))
    found = subprocess.run([PROMTOOL, "check", "metrics"], input=text, capture_output=True,
                           check=False)  # fmt: skip
    assert (found.returncode, found.stderr, found.stdout) == (0, b"", b"")


def test_a_figure_of_the_table_is_read_and_exported(fake, monkeypatch):
    """With no line in any module: those of the table's row alone."""
    row_of_table = ("spans", "new", "hakmem_new_bytes hakmem_span_bytes{state=new}", "a new one")
    monkeypatch.setattr(metrics, "FIGURES", (*metrics.FIGURES, row_of_table))
    kinds = {kind.name: kind for kind in metrics.of_table()}
    seen = look(fake.pid)
    assert list(kinds["hakmem_new_bytes"].read(seen)) == []  # an older library's page
    seen.figures["spans"]["new"] = 7
    assert list(kinds["hakmem_new_bytes"].read(seen)) == [((), 7)]
    assert (("new",), 7) in list(kinds["hakmem_span_bytes"].read(seen))
    assert kinds["hakmem_new_bytes"].text == "A new one."
    assert not kinds["hakmem_new_bytes"].counter and kinds["hakmem_purges"].counter


def test_no_process_is_a_valid_answer(monkeypatch, capfd):
    monkeypatch.setattr(live_figures.stats_page, "processes", lambda *_: iter(()))
    found = run("--prometheus", "-")
    assert found.exit_code == 0
    [family] = text_string_to_metric_families(capfd.readouterr().out)
    assert family.samples[0].value == 0


def test_wrapping_counter_goes_on_in_the_exporter(fake):
    collector = metrics.Collector()
    before = look(fake.pid)
    assert collector.unwrapped(fake.pid, before) == 0
    assert collector.unwrapped(fake.pid, changed(before, 1, slow_paths=500)) == 1 << 32
    assert collector.unwrapped(fake.pid, changed(before, 2, slow_paths=900)) == 1 << 32
    # Another process of that number.
    assert collector.unwrapped(fake.pid, changed(before, 3, slow_paths=10)) == 0


def dashboard_expressions() -> list[str]:
    document = json.loads(DASHBOARD.read_text())
    return [target["expr"] for panel in document["panels"] for target in panel["targets"]]


def metric_names(expression: str) -> set[str]:
    return set(re.findall(r"\bhakmem_\w+", expression))


def test_dashboard_names_only_what_is_exported():
    exported = {"hakmem_processes", *(k.name + "_total" * k.counter for k in metrics.KINDS)}
    expressions = dashboard_expressions()
    assert len(expressions) > 20
    for expression in expressions:
        names = metric_names(expression)
        assert names, expression
        assert names <= exported, names - exported
    shown = {name for expression in expressions for name in metric_names(expression)}
    peaks = {name for name in exported if "peak" in name}
    assert len(peaks) == 3 and peaks <= shown
    variables = json.loads(DASHBOARD.read_text())["templating"]["list"]
    for variable in variables:
        if variable["type"] == "query":
            assert metric_names(variable["query"]["query"]) <= exported


def test_dashboard_is_whole():
    document = json.loads(DASHBOARD.read_text())
    assert {"title", "uid", "schemaVersion", "panels", "templating", "time"} <= set(document)
    panels = document["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    known = {f"${v['name']}" for v in document["templating"]["list"]}
    covered = set()
    for panel in panels:
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {(place["x"] + i, place["y"] + j)
                 for i in range(place["w"]) for j in range(place["h"])}  # fmt: skip
        assert not cells & covered
        covered |= cells
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references)
    assert {"$comm", "$pid", "$datasource"} == known


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@pytest.fixture
def exporter():
    """The address that a served exporter says it has."""
    process = subprocess.Popen([*COMMAND, "--serve", str(free_port())], text=True,
                               stderr=subprocess.PIPE)  # fmt: skip
    try:
        assert select.select([process.stderr], [], [], 60)[0]
        yield process.stderr.readline().strip()
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def get(address: str, accept: str = "*/*") -> tuple[str, str]:
    request = urllib.request.Request(address, headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.read().decode(), answer.headers["Content-Type"]


@pytest.mark.turns
def test_exporter_reads_anew_at_each_scrape(fake, exporter):
    def purges() -> float:
        text, kind = get(exporter, "application/openmetrics-text; version=1.0.0")
        assert kind.startswith("application/openmetrics-text")
        families = {f.name: f for f in text_string_to_metric_families(text)}
        return next(s.value for s in families["hakmem_purges"].samples
                    if s.labels["pid"] == str(fake.pid))  # fmt: skip

    assert purges() == 3
    fake.tell("grow")
    assert purges() == 4
    plain, _ = get(exporter, "text/plain")
    assert "hakmem_purges_total" in plain


@pytest.mark.parametrize("path", ["/metrics", "/", "/favicon.ico"])
def test_exporter_answers_head_as_get_without_a_body(fake, exporter, path):
    target = urllib.parse.urlsplit(exporter).netloc
    heads = []
    for method in ("GET", "HEAD"):
        with socket.create_connection(target.split(":"), 30) as one:
            one.sendall(f"{method} {path} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
            head, _, body = one.makefile("rb").read().partition(b"\r\n\r\n")
        lines = head.decode().splitlines()
        length = next(line for line in lines if line.lower().startswith("content-length: "))
        # Figures, and so lengths, change from one look to the next.
        heads.append([line.partition(":")[0] for line in lines])
        assert lines[0].endswith(" 200 OK")
        assert len(body) == (int(length.partition(": ")[2]) if method == "GET" else 0)
    assert sorted(heads[0]) == sorted(heads[1])


@pytest.mark.turns
def test_port_in_use_is_one_line(fake):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        found = subprocess.run([*COMMAND, "--serve", port], capture_output=True, text=True,
                               check=False)  # fmt: skip
    assert found.returncode == 1
    assert f"127.0.0.1:{port}: Address already in use" in found.stderr
    assert "Traceback" not in found.stderr


@pytest.fixture
def prometheus(tmp_path, exporter):
    """A Prometheus of this test's own that scrapes the exporter; its query function."""
    target = urllib.parse.urlsplit(exporter).netloc
    config = tmp_path / "prometheus.yml"
    config.write_text(
        "global: {scrape_interval: 1s}\n"
        "scrape_configs:\n"
        f"  - {{job_name: hakmem, static_configs: [{{targets: ['{target}']}}]}}\n"
    )
    address = f"127.0.0.1:{free_port()}"
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [PROMETHEUS, f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'data'}",
             f"--web.listen-address={address}", "--log.level=warn"],
            stdout=log, stderr=subprocess.STDOUT, cwd=tmp_path)  # fmt: skip

    def query(expression: str) -> list[dict]:
        asked = urllib.parse.urlencode({"query": expression})
        text, _ = get(f"http://{address}/api/v1/query?{asked}")
        answer = json.loads(text)
        assert answer["status"] == "success"
        return answer["data"]["result"]

    try:
        end = time.monotonic() + 120
        while True:
            assert process.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < end, (tmp_path / "log").read_text()
            try:
                if query("count_over_time(hakmem_resident_bytes[1m]) >= 3"):
                    break
            except OSError:
                pass
            time.sleep(0.2)
        yield query
    finally:
        process.terminate()
        process.wait()


@pytest.mark.long
@pytest.mark.skipif(PROMETHEUS is None, reason="no prometheus: Debian's package of that name")
def test_real_prometheus_scrapes_it_and_answers_the_dashboard(fake, prometheus):
    [up] = prometheus('up{job="hakmem"}')
    assert up["value"][1] == "1"
    [live] = prometheus(f'sum by (pid) (hakmem_live_bytes{{pid="{fake.pid}"}})')
    assert live["metric"] == {"pid": str(fake.pid)}
    assert float(live["value"][1]) == 60_000 + (3 << 16) + (3 << 20) + 150_000
    before = prometheus(f'hakmem_spans_taken_total{{pid="{fake.pid}"}}')[0]
    assert before["value"][1] == "100"
    fake.tell("grow")
    end = time.monotonic() + 60
    while not prometheus(f'increase(hakmem_spans_taken_total{{pid="{fake.pid}"}}[1m]) > 0'):
        assert time.monotonic() < end
        time.sleep(0.2)
    answered = 0
    for expression in dashboard_expressions():
        for name, value in VARIABLES.items():
            expression = expression.replace(name, value)
        answered += bool(prometheus(expression))
    # Of those that need a limit there is none here.
    assert answered >= len(dashboard_expressions()) - 1


def heaps_shown(output: str) -> list[list[str]]:
    """The rows of the table of heaps."""
    lines = output[output.index("requests") :].splitlines()[3:]
    return [line.split() for line in lines if line.split()[:1] and line.split()[0].isdigit()]


def test_heaps_are_shown_by_what_is_live_in_them_and_below(fake, tmp_path):
    path = tmp_path / "top.json"
    found = run("--once", "--heaps", "--interval", "0.1", "--json", str(path), str(fake.pid))
    assert found.exit_code == 0, found.output
    assert [(row[0], row[-1]) for row in heaps_shown(found.output)] == [
        ("1", "0"), ("9", "0"), ("7", "0"),
    ]  # fmt: skip
    assert "300.00 %" in found.output  # of its limit, the heaps below it included
    assert "The 3 largest heaps of 300" in found.output
    assert "\x1b" not in found.output
    assert r'a "b"\ \x1b[2J[red]\né' in found.output
    heaps = json.loads(path.read_text())["heaps"]
    assert [(each["id"], each["parent"], each["live"], each["pid"]) for each in heaps] == [
        (1, 0, 20_000, fake.pid), (9, 1, 90_000, fake.pid), (7, 1, 40_000, fake.pid),
    ]  # fmt: skip
    assert heaps[0]["refused"] == 5


def test_rates_of_heaps_are_of_the_time_between_the_pages(fake):
    before = look(fake.pid)
    rows = [each | {"requests": each["requests"] + 50} for each in before.figures["heaps"]]
    rows[0]["id"] = 100
    later = changed(before, 0.5)
    later.figures["heaps"] = rows
    found = {each.id: each for each in heap_rows(later, before)}
    assert found[7].request_rate == pytest.approx(100)
    assert found[7].refused_rate == 0
    assert found[100].request_rate is None
    assert [each.request_rate for each in heap_rows(before, None)] == [None] * 3


def test_heaps_of_all_processes_are_shown_together(fake):
    with fake_process() as other:
        found = run("--once", "--heaps", "--interval", "0.1")
    assert found.exit_code == 0, found.output
    rows = heaps_shown(found.output)
    assert {(row[0], row[1]) for row in rows} >= {
        (str(each), heap) for each in (fake.pid, other.pid) for heap in ("1", "7", "9")
    }


def test_a_page_without_heaps_says_so():
    with fake_process("older") as older:
        found = run("--once", "--heaps", "--interval", "0.1", str(older.pid))
        families = list(text_string_to_metric_families(metrics.text(older.pid)))
    assert found.exit_code == 0, found.output
    assert "no heaps" in found.output
    assert not [f.name for f in families if "hakmem_heap" in f.name]


def test_heaps_are_metrics_by_name_and_id(fake):
    text = metrics.text(fake.pid)
    families = {f.name: f for f in text_string_to_metric_families(text)}
    live = {(s.labels["heap"], s.labels["id"]): s.value
            for s in families["hakmem_heap_live_bytes"].samples}  # fmt: skip
    assert live == {("tenant", "1"): 20_000, ("query", "7"): 40_000,
                    (r'a "b"\ \x1b[2J[red]\n' + "é", "9"): 90_000}  # fmt: skip
    assert r'heap="a \"b\"\\ \\x1b[2J[red]\\né"' in text
    refused = {s.labels["id"]: s.value for s in families["hakmem_heap_refused"].samples}
    assert refused == {"1": 5, "7": 0, "9": 0}
    assert families["hakmem_heap_refused"].type == "counter"
    [count], [left_out] = (
        families[f"hakmem_{name}"].samples for name in ("heaps", "heaps_left_out")
    )
    assert (count.value, left_out.value) == (300, 297)


@pytest.mark.parametrize(
    "wrong",
    [
        {"id": 7},
        {"name": 7},
        {"live": -1},
        {"live": None},
        {"live": 1 << 64},
    ],
)
def test_heaps_that_cannot_be_are_refused(fake, wrong):
    figures = json.loads(json.dumps(look(fake.pid).figures))
    figures["heaps"][2].update(wrong)
    with pytest.raises(ValueError, match=r"heaps|name|live|out of range"):
        page_shape.parse(json.dumps(figures).encode())


def test_heaps_go_with_tables_alone(tmp_path):
    found = run("--heaps", "--prometheus", str(tmp_path / "a.prom"))
    assert (found.exit_code, "--heaps is for tables" in found.output) == (2, True)
