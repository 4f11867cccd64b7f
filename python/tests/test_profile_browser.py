"""The heap profile's page in a real browser, and Valgrind's viewer with our file."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
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
from hakmem.profiles.profile_sites import compare

__all__ = ["browser", "pytestmark"]
VIEWER = Path("/usr/libexec/valgrind/dh_view.html")
FRAMES = "return [...document.querySelectorAll('#flame-graph g.frame')].map(g => [" \
         "g.getAttribute('name'), g.getBoundingClientRect().width])"  # fmt: skip


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
        "empty": profile_html.of_profile(named_of(document([], timeline=[]))),
    }
    paths = {name: folder / f"{name}.html" for name in texts}
    for name, path in paths.items():
        path.write_text(texts[name])
    return paths


@pytest.fixture(params=WIDTHS)
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
    choose(page, "bytes allocated since the start")
    largest = {"server", "server+0x1500", "server+0x1100", "server+0x1300"}
    # A box of less than a pixel is not drawn.
    found = wait_for(page, largest, frozenset({"server+0x1200"}))
    assert found["server+0x1300"] > found["server+0x1100"]


def test_flame_graph_begins_with_what_was_asked_for(opened):
    chosen = "return document.getElementById('measure').selectedOptions[0].text"
    assert opened("total").execute_script(chosen) == "bytes allocated since the start"
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
