"""The first page of `hakmem serve` in a real browser: a reader's colours, the width of a desk and
of a phone."""

from __future__ import annotations

import pytest
from test_browser import INKS, WIDTHS, at_width, browser, contrast, in_scheme, pytestmark
from test_serve import fake, served

__all__ = ["browser", "fake", "pytestmark"]


@pytest.fixture
def address(fake):
    with served(fake.pid) as (address, _):
        yield address


def test_index_is_readable_wherever_it_is_read(browser, address):
    browser.get_log("browser")
    for width in WIDTHS:
        at_width(browser, width)
        for scheme in ("light", "dark"):
            in_scheme(browser, scheme)
            browser.get(address)
            paper, inks = browser.execute_script(INKS)
            assert (sum(paper) < 3 * 128) == (scheme == "dark")
            assert [name for name, ink in inks.items() if contrast(ink, paper) < 4.5] == []
            wide, there, first, font = browser.execute_script(
                "const one = document.querySelector('h1');"
                "return [document.scrollingElement.scrollWidth, innerWidth,"
                "one.getBoundingClientRect().left, getComputedStyle(one).fontFamily]"
            )
            assert wide <= there
            assert first >= 8
            assert "sans-serif" in font
    # Such as that there is no icon.
    assert browser.get_log("browser") == []


@pytest.mark.turns
def test_index_leads_to_the_report_with_a_keyboard_alone(browser, address):
    from selenium.webdriver.common.keys import Keys

    browser.get(address)
    browser.switch_to.active_element.send_keys(Keys.TAB, Keys.ENTER)
    assert browser.current_url == f"{address}/report"
