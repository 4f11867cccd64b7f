"""The HTML report in a real browser: what a reader sees, at the width of a desk and of a phone."""

from __future__ import annotations

import random
import shutil
import socket
from pathlib import Path

import pytest

from hakmem.measuring.measures import (
    BASELINE,
    CPU,
    FAULTS,
    IDLE_RSS,
    PEAK_RSS,
    WALL,
    Cell,
    Measure,
    measures_for,
    verdict,
)
from hakmem.measuring.rotation import OPS_PER_SECOND
from hakmem.measuring.statistics import median_interval, speed_ratio
from hakmem.output.report import page

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")


def knows_localhost() -> bool:
    try:
        socket.getaddrinfo("localhost", None)
    except OSError:
        return False
    return True


pytestmark = [
    pytest.mark.skipif(not CHROMIUM or not DRIVER, reason="no chromium with its driver"),
    # selenium reaches the driver by that name.
    pytest.mark.skipif(not knows_localhost(), reason="the system has no address for localhost"),
]

NAMES = (
    "hakmem", "glibc", "mimalloc", "jemalloc", "tcmalloc", "mimalloc3", "jemalloc5", "snmalloc",
    "tcmalloc-google", "rpmalloc", "a-very-long-name-given-with-lib-on-the-command-line",
)  # fmt: skip
PROGRAM = "/usr/local/bin/some-program " + "--with-a-long-option=/path/without/any/blank/in/it" * 6
# The plots that the page shows at its width.
PLOTS = """
const plots = [...document.querySelectorAll("figure svg")].filter(
    plot => plot.getBoundingClientRect().width);
"""
# Every text of a plot that covers a part of another one.
OVERLAPS = f"""
{PLOTS}
const found = [];
for (const plot of plots) {{
    const texts = [...plot.querySelectorAll("text")];
    const boxes = texts.map(text => text.getBoundingClientRect());
    for (let i = 0; i < boxes.length; i++)
        for (let j = 0; j < i; j++) {{
            const [a, b] = [boxes[i], boxes[j]];
            const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
            const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
            if (across > 1 && down > 1) found.push([texts[i].textContent, texts[j].textContent]);
        }}
}}
return found;
"""
# Texts that a plot cuts off, and the size of the smallest.
CUT_OFF = f"""
{PLOTS}
return plots.flatMap(plot => {{
    const frame = plot.getBoundingClientRect();
    return [...plot.querySelectorAll("text")].filter(text => {{
        const box = text.getBoundingClientRect();
        return box.left < frame.left - 1 || box.right > frame.right + 1
            || box.top < frame.top - 1 || box.bottom > frame.bottom + 1;
    }}).map(text => text.textContent);
}});
"""
SMALLEST = f"""
{PLOTS}
return Math.min(...plots.flatMap(plot => [...plot.querySelectorAll("text")]).map(
    text => parseFloat(getComputedStyle(text).fontSize)
        * Math.hypot(text.getScreenCTM().a, text.getScreenCTM().b)));
"""
READABLE_PX = 11


# The colour of the page, and each colour of text on it, in the page and in plots.
INKS = """
const numbers = colour => colour.match(/[0-9.]+/g).slice(0, 3).map(Number);
const inks = {};
for (const one of document.querySelectorAll("h1, p, li, a, code, td, th, small, figure svg text"))
    inks[one.tagName + " " + one.className] = numbers(
        one instanceof SVGElement ? getComputedStyle(one).fill : getComputedStyle(one).color);
return [numbers(getComputedStyle(document.body).backgroundColor), inks];
"""


# Of a phone, a tablet and a desk.
WIDTHS = (390, 768, 1440)


def at_width(browser, width: int) -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def in_scheme(browser, scheme: str) -> None:
    feature = {"name": "prefers-color-scheme", "value": scheme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})


def contrast(one: list[float], other: list[float]) -> float:
    """The contrast ratio of WCAG 2.1."""

    def luminance(colour: list[float]) -> float:
        parts = [c / 255 / 12.92 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in colour]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def cells(measure: Measure, size: float) -> list[Cell]:
    numbers = random.Random(7)
    runs = {
        name: [size * (1 + i / 9) * numbers.uniform(0.9, 1.1) for _ in range(10)]
        for i, name in enumerate(NAMES)
    }
    found = []
    for name, values in runs.items():
        ratio = None if name == NAMES[0] else speed_ratio(runs[NAMES[0]], values, 1)
        said = BASELINE if ratio is None else verdict(measure, ratio)
        middle = median_interval(values, 1)
        found.append(Cell(name, tuple(values), middle, 0.05, 1.5, ratio, said))
    return found


@pytest.fixture(scope="module")
def report_path(tmp_path_factory) -> Path:
    sizes = ((measures_for(OPS_PER_SECOND)[0], 104e6), (WALL, 0.2), (CPU, 12.5),
             (PEAK_RSS, 1234.0), (IDLE_RSS, 0.4), (FAULTS, 1234567.0))  # fmt: skip
    text = page(
        PROGRAM,
        {"kernel": "Linux 6", "settings": "HAKMEM_TINY_HOT_RING_C3=128 " * 12},
        [(measure, cells(measure, size)) for measure, size in sizes],
        {"crashed": "killed by SIGSEGV; it last said: " + "x" * 400},
        ["not compared: libother: not installed", "n" * 300],
        NAMES[0],
        ["hakmem ran your program 1.08 times as fast as glibc [1.05, 1.11]: faster."],
    )
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(text)
    return path


@pytest.fixture(scope="module")
def browser():
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    # Root may not use the sandbox, and containers have little /dev/shm.
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture(params=WIDTHS)
def opened(request, browser, report_path):
    at_width(browser, request.param)
    return open_page(browser, report_path)


def open_page(browser, path: Path):
    from selenium.webdriver.support.ui import WebDriverWait

    # Off the page first: a second visit to where it is already can return before all is read.
    browser.get("about:blank")
    browser.get(path.as_uri())
    WebDriverWait(browser, 30).until(
        lambda there: there.execute_script(
            "return document.readyState === 'complete'"
            " && document.body.textContent.includes('How it was measured')"
        )
    )
    return browser


@pytest.mark.turns
def test_page_is_not_wider_than_its_window(opened):
    wide, there = opened.execute_script(
        "return [document.scrollingElement.scrollWidth, innerWidth]"
    )
    assert wide <= there


def test_tables_scroll_only_where_the_window_has_no_room(opened):
    """In boxes of their own, which are as wide as the column of text at least."""
    tables = opened.execute_script(
        "return [...document.querySelectorAll('table')].map(table => {"
        "const box = table.closest('.scroll'), at = box.getBoundingClientRect();"
        "return [at.left, document.documentElement.clientWidth - at.right, at.width,"
        "getComputedStyle(box).overflowX, box.scrollWidth - box.clientWidth]})"
    )
    assert len(tables) == 7
    column = opened.execute_script("return document.querySelector('h1').offsetWidth")
    for left, right, width, overflow, hidden in tables:
        assert left == pytest.approx(right, abs=1)
        assert left >= 15
        assert overflow == "auto"
        assert width >= column - 1
        assert hidden <= 0 or left <= 18
    if opened.execute_script("return innerWidth") == max(WIDTHS):
        assert [hidden for *_, hidden in tables] == [0] * 7


def test_names_stay_beside_figures_that_are_scrolled_to(opened):
    moved = opened.execute_script(
        "return [...document.querySelectorAll('table:not(.facts)')].map(table => {"
        "const box = table.closest('.scroll'); box.scrollLeft = 10000;"
        "const name = table.rows[1].cells[0].getBoundingClientRect();"
        "return [name.left - box.getBoundingClientRect().left, name.width / box.clientWidth]})"
    )
    assert len(moved) == 6
    for left, share in moved:
        assert left == pytest.approx(0, abs=1)
        assert share < 0.5


def test_plots_are_as_wide_as_the_column_of_text(opened):
    plots, column = opened.execute_script(
        PLOTS + "return [plots.map(plot => plot.getBoundingClientRect().width),"
        "document.querySelector('h1').offsetWidth]"
    )
    assert [round(width) for width in plots] == [column] * 6


def test_summary_is_the_first_thing_and_method_the_last(opened):
    tops = opened.execute_script(
        "return ['.summary', 'h2', 'figure', 'table.facts'].map("
        "name => document.querySelector(name).getBoundingClientRect().top)"
    )
    assert tops == sorted(tops)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_stands_out_from_the_paper(opened, scheme):
    in_scheme(opened, scheme)
    paper, inks = opened.execute_script(INKS)
    assert (sum(paper) < 3 * 128) == (scheme == "dark")
    assert len(inks) > 5
    assert {
        name: contrast(ink, paper) for name, ink in inks.items() if contrast(ink, paper) < 4
    } == {}


def test_plots_are_drawn_with_a_text_for_each_allocator(opened):
    plots = opened.execute_script(
        PLOTS + "return plots.map(plot => ["
        "plot.getBoundingClientRect().width, plot.getBoundingClientRect().height,"
        "[...plot.querySelectorAll('text')].map(text => text.textContent)])"
    )
    assert len(plots) == 6
    for width, height, texts in plots:
        assert width > 300
        assert height > 200
        assert set(NAMES[:-1]) <= set(texts)


def test_texts_of_plots_are_readable_and_apart(opened):
    assert opened.execute_script(OVERLAPS) == []
    assert opened.execute_script(CUT_OFF) == []
    assert opened.execute_script(SMALLEST) >= READABLE_PX


# Where the dots of the first plot are, in parts of its width.
DOTS = f"""
{PLOTS}
const frame = plots[0].getBoundingClientRect();
return [...plots[0].querySelectorAll("use")].filter(one => one.style.fillOpacity === "0.7").map(
    one => {{
        const at = one.getBoundingClientRect();
        return ((at.left + at.right) / 2 - frame.left) / frame.width;
    }});
"""


def runs_of(*medians: float, noise: float = 0.005, slow: float = 1.0) -> list[Cell]:
    """Seven runs of each; one of the first is `slow` times as long."""
    numbers = random.Random(3)
    found = []
    for name, middle in zip(NAMES, medians):
        values = [middle * numbers.uniform(1 - noise, 1 + noise) for _ in range(7)]
        if not found:
            values[3] *= slow
        to_best = middle / min(medians) if min(medians) else None
        found.append(Cell(name, tuple(values), median_interval(values, 1), 0.05, to_best, None,
                          BASELINE))  # fmt: skip
    return found


@pytest.mark.parametrize("width", [min(WIDTHS), max(WIDTHS)])
@pytest.mark.parametrize(
    ("cells", "told", "apart"),
    [
        (runs_of(100.0, 103.0, 106.0), ("cost ÷ best", "1.02"), 0.5),
        (runs_of(100.0, 103.0, slow=9.0), ("cost ÷ best", " →"), 0.3),
        (runs_of(100.0, 110.0, 3000.0), ("steps by ratio", "cost ÷ best"), 0.5),
        # Nobody can tell these apart: the plot does not either.
        (runs_of(100.0, 100.1, noise=0.0001), ("cost ÷ best",), -0.1),
        (runs_of(0.0, 40.0), ("0",), 0.5),
        (runs_of(0.0, 0.0), ("0",), 0.0),
    ],
)
def test_dots_lie_apart_as_the_figures_do(browser, tmp_path, width, cells, told, apart):
    path = tmp_path / "report.html"
    path.write_text(page("program", {}, [(CPU, cells)], {}, [], NAMES[0]))
    at_width(browser, width)
    there = open_page(browser, path)
    text = there.execute_script(PLOTS + "return plots[0].textContent")
    assert [part for part in told if part not in text] == []
    dots = there.execute_script(DOTS)
    assert all(0 <= dot <= 1 for dot in dots)
    spread = max(dots) - min(dots)
    assert spread >= apart if apart >= 0 else spread <= -apart
    assert there.execute_script(OVERLAPS) == []
    assert there.execute_script(CUT_OFF) == []


def test_every_plot_says_unit_and_direction(opened):
    texts = opened.execute_script(PLOTS + "return plots.map(plot => plot.textContent)")
    units = ["(M ops/s)", "(ms)", "(s)", "(MB)", "(MB)", ""]
    for text, unit in zip(texts, units):
        assert unit in text
    assert "higher is better" in texts[0]
    assert all("lower is better" in text for text in texts[1:])


def test_browser_has_nothing_to_complain_of(opened):
    assert opened.get_log("browser") == []


@pytest.mark.turns
def test_nothing_is_fetched(opened):
    assert opened.execute_script("return performance.getEntriesByType('resource').length") == 0
