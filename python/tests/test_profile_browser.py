"""The heap profile's page in a real browser, and Valgrind's viewer with our file."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from fake_profile import BASE, document, stack
from test_browser import (
    CHROMIUM,
    CUT_OFF,
    INKS,
    OVERLAPS,
    PLOTS,
    READABLE_PX,
    SMALLEST,
    WIDTHS,
    at_width,
    browser,
    contrast,
    in_scheme,
    pytestmark,
)
from test_profile import named_of

from hakmem.profiles import profile_files, profile_html, profile_pprof
from hakmem.profiles.profile_sites import Named, Site, compare
from hakmem.profiles.symbols import INTERPRETER, PYTHON, Frame

__all__ = ["browser", "pytestmark"]
VIEWER = Path("/usr/libexec/valgrind/dh_view.html")
FRAMES = "return [...document.querySelectorAll('#flame-graph g.frame')].map(g => [" \
         "g.getAttribute('name'), g.getBoundingClientRect().width])"  # fmt: skip


FUNCTIONS, INSIDE = 40, 5


def of_python(told: bool) -> Named:
    """Stacks as CPython has them: between two functions of Python, or of an extension, five of the
    interpreter."""
    inside = [Frame(f"_PyEval_{i}", part=INTERPRETER) for i in range(INSIDE)]
    part = PYTHON if told else ""
    sites = []
    for kind, size in (("list_resize", 3 << 20), ("dict_resize", 1 << 20)):
        frames = [Frame(kind, part=INTERPRETER)]
        for i in reversed(range(FUNCTIONS)):
            frames += [*inside, Frame(f"level_{i}", "/nowhere/program.py", part=part)]
        figures = named_of(document([stack([BASE + 0x101], size, 4)])).sites[0].figures
        sites.append(Site((*frames, *inside, Frame("main", part=INTERPRETER)), figures))
    return replace(named_of(document()), sites=tuple(sites))


def of_many_functions() -> Named:
    """Thousands of boxes, and one stack as deep as there are."""
    figures = named_of(document([stack([BASE + 0x101], 1 << 20, 1)])).sites[0].figures
    sites = [
        Site(tuple(Frame(f"f_{i}_{depth}") for depth in reversed(range(20))), figures)
        for i in range(150)
    ]
    deep = tuple(Frame(f"deep_{depth}") for depth in reversed(range(250)))
    return replace(named_of(document()), sites=(*sites, *[Site(deep, figures)] * 20))


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    before = named_of(document([stack([BASE + 0x101, BASE + 0x501], 3 << 20, 3),
                                stack([BASE + 0x401, BASE + 0x501], 1 << 20, 1)]))  # fmt: skip
    after = named_of(document())
    texts = {
        "profile": profile_html.of_profile(after),
        "leaks": profile_html.of_profile(after, leaks=True),
        "total": profile_html.of_profile(after, "total"),
        "changes": profile_html.of_changes(before, after, compare(before, after)),
        "python": profile_html.of_profile(of_python(told=True)),
        "extension": profile_html.of_profile(of_python(told=False)),
        "many": profile_html.of_profile(of_many_functions()),
        "empty": profile_html.of_profile(named_of(document([], timeline=[]))),
    }
    paths = {name: folder / f"{name}.html" for name in texts}
    for name, path in paths.items():
        path.write_text(texts[name])
    return paths


@pytest.fixture(params=(min(WIDTHS), max(WIDTHS)))
def opened(request, browser, pages):
    from selenium.webdriver.support.ui import WebDriverWait

    at_width(browser, request.param)

    def open_page(name: str):
        browser.get("about:blank")
        browser.get(pages[name].as_uri())
        WebDriverWait(browser, 30).until(
            lambda there: there.execute_script("return document.readyState === 'complete'")
        )
        return browser

    return open_page


def wait_for(page, names: set[str], ignored: frozenset[str] = frozenset()) -> dict[str, float]:
    """The boxes of the flame graph that are to be seen, with their widths, once they are these."""
    from selenium.webdriver.support.ui import WebDriverWait

    def shown(there):
        found = {name: width for name, width in there.execute_script(FRAMES) if width > 1}
        return found if names == set(found) - ignored else None

    return WebDriverWait(page, 30).until(shown)


def choose(page, measure: str) -> None:
    page.execute_script(
        "const one = document.getElementById('measure');"
        "one.value = [...one.options].find(o => o.text === arguments[0]).value;"
        "one.dispatchEvent(new Event('change'));",
        measure,
    )


@pytest.mark.turns
@pytest.mark.parametrize("name", ["profile", "leaks", "changes", "empty"])
def test_page_fits_its_window_and_needs_no_other(opened, name):
    page = opened(name)
    wide, there = page.execute_script("return [document.scrollingElement.scrollWidth, innerWidth]")
    assert wide <= there
    loose, plots, column = page.execute_script(
        PLOTS + "return ["
        "[...document.querySelectorAll('table')].filter(t => !t.closest('.scroll')).length,"
        "plots.map(plot => plot.getBoundingClientRect().width),"
        "document.querySelector('h1').offsetWidth]"
    )
    assert loose == 0
    assert [round(width) for width in plots] == [column] * len(plots)
    assert page.get_log("browser") == []
    assert page.execute_script("return performance.getEntriesByType('resource').length") == 0


def test_flame_graph_shows_the_measure_that_is_chosen(opened):
    page = opened("profile")
    found = wait_for(page, {"server", "server+0x1500", "server+0x1100", "server+0x1200"})
    assert found["server+0x1100"] == pytest.approx(found["server"] * 64 / 65, rel=0.02)
    choose(page, "bytes allocated since sampling started")
    largest = {"server", "server+0x1500", "server+0x1100", "server+0x1300"}
    # A box of less than a pixel is not drawn.
    found = wait_for(page, largest, frozenset({"server+0x1200"}))
    assert found["server+0x1300"] > found["server+0x1100"]


def test_flame_graph_begins_with_what_was_asked_for(opened):
    chosen = "return document.getElementById('measure').selectedOptions[0].text"
    assert opened("total").execute_script(chosen) == "bytes allocated since sampling started"
    assert opened("profile").execute_script(chosen) == "live bytes"


def test_flame_graph_is_searched_and_zoomed(opened):
    page = opened("profile")
    wait_for(page, {"server", "server+0x1500", "server+0x1100", "server+0x1200"})
    page.find_element("id", "search").send_keys("0X1200")
    details = page.find_element("id", "details")
    assert details.text == "found: 1.0 MB, 1.5 %"
    fill = "return document.querySelector(\"g[name='server+0x1200'] rect\").getAttribute('fill')"
    assert page.execute_script(fill) == "#E600E6"
    page.execute_script(
        "document.querySelector(\"g[name='server+0x1200']\")"
        ".dispatchEvent(new MouseEvent('click', {bubbles: true}))"
    )
    found = wait_for(page, {"server", "server+0x1500", "server+0x1200"})
    assert found["server+0x1200"] == pytest.approx(found["server"], rel=0.2)
    page.find_element("id", "reset").click()
    wait_for(page, {"server", "server+0x1500", "server+0x1100", "server+0x1200"})


NAMES_DRAWN = "return [...document.querySelectorAll('#flame-graph g.frame')].map(g => " \
              "g.getAttribute('name'))"  # fmt: skip


def test_what_runs_python_is_folded(opened):
    page = opened("python")
    levels = [f"level_{i}" for i in range(FUNCTIONS)]
    wanted = ["server", *levels, "list_resize", "dict_resize"]
    assert sorted(page.execute_script(NAMES_DRAWN)) == sorted(wanted)
    page.find_element("id", "fold").click()
    assert len(page.execute_script(NAMES_DRAWN)) == 1 + FUNCTIONS * (1 + INSIDE) + INSIDE + 1 + 2
    page.find_element("id", "fold").click()
    assert len(page.execute_script(NAMES_DRAWN)) == FUNCTIONS + 3


def test_what_runs_python_is_one_box_between_functions_of_others(opened):
    """Where Python's own functions have no names."""
    page = opened("extension")
    names = page.execute_script(NAMES_DRAWN)
    assert names.count("CPython") == FUNCTIONS + 1
    assert [name for name in names if name.startswith("_PyEval")] == []
    assert len(names) == 1 + 2 * FUNCTIONS + 1 + 2


def test_without_python_there_is_nothing_to_fold(opened):
    assert opened("profile").find_elements("id", "fold") == []


def test_flame_graph_is_no_higher_than_the_window(opened):
    page = opened("many")
    height, inside, window = page.execute_script(
        "const place = document.getElementById('flame-graph');"
        "return [place.offsetHeight, place.scrollHeight, innerHeight]"
    )
    assert height <= 0.7 * window < inside
    # A click deep down shows the box that was clicked, not the hundreds above it.
    page.execute_script(
        "document.querySelector(\"g[name='deep_200']\")"
        ".dispatchEvent(new MouseEvent('click', {bubbles: true}))"
    )
    row, place = page.execute_script(
        "return [document.querySelector(\"g[name='deep_200']\"),"
        "document.getElementById('flame-graph')].map(e => e.getBoundingClientRect().top)"
    )
    assert place <= row <= place + 0.3 * window


def press(page, *keys: str) -> str:
    """The name of the box that has the keys then."""
    for key in keys:
        page.switch_to.active_element.send_keys(key)
    return page.execute_script("return document.activeElement.getAttribute('name')")


@pytest.mark.turns
def test_flame_graph_is_one_stop_of_the_tab_key_and_the_arrows_go_on(opened):
    from selenium.webdriver.common.keys import Keys

    page = opened("many")
    stops = "return document.querySelectorAll('#flame-graph [tabindex=\"0\"]').length"
    assert len(page.execute_script(FRAMES)) > 250
    assert page.execute_script(stops) == 1
    page.find_element("id", "reset").send_keys(Keys.TAB)
    if page.execute_script("return document.activeElement.id") == "flame-graph":
        press(page, Keys.TAB)
    details = page.find_element("id", "details")
    assert press(page) == "server"
    assert details.text == "server: 170.0 MB, 100.0 %"
    assert press(page, Keys.DOWN) == "deep_0"
    assert details.text.startswith("deep_0: 20.0 MB, 11.8 %")
    assert press(page, Keys.RIGHT) == "f_0_0"
    assert press(page, Keys.RIGHT, Keys.DOWN) == "f_1_1"
    assert press(page, Keys.LEFT) == "f_0_1"
    assert press(page, Keys.UP, Keys.UP) == "server"
    assert press(page, Keys.UP, Keys.LEFT, Keys.RIGHT) == "server"
    assert page.execute_script(stops) == 1
    assert press(page, *[Keys.DOWN] * 100) == "deep_99"
    at, place, end = page.execute_script(
        "const place = document.getElementById('flame-graph').getBoundingClientRect();"
        "return [document.activeElement.getBoundingClientRect().top, place.top, place.bottom]"
    )
    assert place <= at < end
    assert press(page, Keys.ENTER) == "deep_99"
    assert len(page.execute_script(FRAMES)) == 251
    assert page.execute_script(stops) == 1
    assert press(page, Keys.HOME) == "server"
    assert press(page, Keys.ESCAPE) == "server"
    assert len(page.execute_script(FRAMES)) > 251
    page.switch_to.active_element.send_keys(Keys.TAB)
    assert page.execute_script("return document.activeElement.closest('#flame-graph')") is None


def test_a_touch_tells_of_the_box_that_it_shows(opened):
    page = opened("profile")
    wait_for(page, {"server", "server+0x1500", "server+0x1100", "server+0x1200"})
    x, y = page.execute_script(
        "const frame = document.querySelector(\"g[name='server+0x1100']\");"
        "frame.scrollIntoView({block: 'center'});"
        "const at = frame.getBoundingClientRect();"
        "return [at.left + at.width / 2, at.top + at.height / 2]"
    )
    page.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": True})
    try:
        for kind, points in (("touchStart", [{"x": x, "y": y}]), ("touchEnd", [])):
            page.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
        wait_for(page, {"server", "server+0x1500", "server+0x1100"})
    finally:
        page.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": False})
    details = page.find_element("id", "details")
    assert details.text == "server+0x1100: 64.0 MB, 98.5 %"
    assert details.is_displayed()


def test_details_do_not_move_what_they_are_of(opened):
    page = opened("profile")
    top = "return document.getElementById('flame-graph').getBoundingClientRect().top"
    before = page.execute_script(top)
    page.execute_script(
        "document.getElementById('details').textContent = 'std::vector<std::string>'.repeat(40)"
    )
    assert page.execute_script(top) == before


def test_growth_and_shrinkage_are_two_flame_graphs(opened):
    page = opened("changes")
    wait_for(page, {"server", "server+0x1500", "server+0x1100", "server+0x1200"})
    choose(page, "shrinkage, bytes")
    wait_for(page, {"server", "server+0x1500", "server+0x1400"})


def test_an_empty_profile_says_so(opened):
    assert opened("empty").find_element("id", "details").text == "Nothing of this measure was seen."


def test_timeline_is_readable_and_has_its_peak(opened):
    page = opened("profile")
    assert page.execute_script(OVERLAPS) == []
    assert page.execute_script(CUT_OFF) == []
    assert page.execute_script(SMALLEST) >= READABLE_PX
    text = page.execute_script(PLOTS + "return plots[0].textContent")
    assert "peak 97.0 MB" in text
    assert "live, MB" in text


def test_tables_have_live_beside_pinned_and_open_their_stacks(opened):
    page = opened("profile")
    rows = page.execute_script(
        "return [...document.querySelector('table.sites').rows].map(r =>"
        " [...r.cells].map(c => c.textContent))"
    )
    assert rows[0] == ["live", "95 % interval", "objects", "pinned", "mean age", "oldest", "stack"]
    assert rows[1][:1] + rows[1][2:6] == ["64.0 MB", "64", "128.0 MB", "1.5 s", "9.0 s"]
    page.execute_script("document.querySelector('table.sites details').open = true")
    items = page.execute_script(
        "return [...document.querySelectorAll('table.sites details[open] li')]"
        ".map(item => item.innerText)"
    )
    assert [item.strip() for item in items] == ["server+0x1100", "server+0x1500"]


@pytest.mark.skipif(not VIEWER.exists() or not CHROMIUM, reason="no viewer of Valgrind's DHAT")
def test_the_viewer_of_valgrind_reads_our_file(browser, tmp_path):
    from selenium.webdriver.support.ui import WebDriverWait

    path = tmp_path / "heap.dhat.json"
    path.write_text(profile_files.dhat(named_of(document())))
    total = sum(p["tb"] for p in json.loads(path.read_text())["pps"])
    browser.get(VIEWER.as_uri())
    browser.find_element("css selector", "input[type=file]").send_keys(str(path))
    WebDriverWait(browser, 30).until(
        lambda there: f"{total:,}" in there.find_element("tag name", "body").text
    )
    text = browser.find_element("tag name", "body").text
    assert "server+0x1300" in text
    assert "Error" not in text


@pytest.fixture(scope="module")
def speedscope(tmp_path_factory) -> Path:
    """The page of Speedscope, as its package has it."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("no npm to get Speedscope with")
    folder = tmp_path_factory.mktemp("speedscope")
    try:
        got = subprocess.run([npm, "pack", "speedscope@1.25.0"], cwd=folder, timeout=120,
                             capture_output=True, check=False)  # fmt: skip
    except subprocess.TimeoutExpired:
        pytest.skip("Speedscope did not come")
    archives = list(folder.glob("speedscope-*.tgz"))
    if got.returncode or not archives:
        pytest.skip("Speedscope cannot be had")
    shutil.unpack_archive(archives[0], folder)
    return folder / "package/dist/release/index.html"


@pytest.mark.long
@pytest.mark.parametrize("kind", ["pb.gz", "folded"])
def test_speedscope_reads_our_files(browser, speedscope, tmp_path, kind):
    from selenium.webdriver.support.ui import WebDriverWait

    found = named_of(document())
    data = (profile_pprof.of_profile(found) if kind == "pb.gz"
            else profile_files.folded(found.sites).encode())  # fmt: skip
    name, text = f"heap.{kind}", base64.b64encode(data).decode()
    # What its command line makes for it.
    script = tmp_path / "load.js"
    script.write_text(f"speedscope.loadFileFromBase64('{name}', '{text}')")
    browser.get("about:blank")
    browser.get(f"{speedscope.as_uri()}#localProfilePath={script}")
    wait = WebDriverWait(browser, 60)
    wait.until(lambda there: there.title.startswith(name))
    browser.execute_script(
        "[...document.querySelectorAll('div')].filter(one => one.children.length <= 1"
        " && one.textContent.includes('Sandwich')).forEach(one => one.click())"
    )
    wait.until(lambda there: "Symbol Name" in there.find_element("tag name", "body").text)
    rows = browser.execute_script("return document.body.innerText").partition("Symbol Name")[2]
    first = [line.strip() for line in rows.splitlines() if line.strip()][:3]
    assert first[2] == "server+0x1100"
    # The folded format has no unit.
    assert first[0].startswith("64.00 MB" if kind == "pb.gz" else "67,108,864")


@pytest.mark.turns
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_and_the_summary_is_first(opened, scheme):
    page = opened("profile")
    in_scheme(page, scheme)
    paper, inks = page.execute_script(INKS)
    assert (sum(paper) < 3 * 128) == (scheme == "dark")
    assert [name for name, ink in inks.items() if contrast(ink, paper) < 4] == []
    said = page.execute_script("return document.querySelector('h1').nextElementSibling.innerText")
    assert "live blocks; at its peak" in said
    assert "% of live memory is of" in said
