"""The site of the documents in a real browser: names stay whole, samples are shown whole, each option has an anchor, and search leads to pages
that tell what is.

Status 77, which CTest counts as skipped, without the site's generator, chromium or selenium.
"""

import functools
import http.server
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
PYTHON = REPO / ".venv/bin/python"
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
PHONE, TABLET, DESK = 390, 768, 1440
PAGES = ("index", "options", "troubleshooting", "security", "figures", "deploying", "migrating", "cpp", "rust", "heaps")
# What people look for, and the page that the first answer is on; None: any that is neither a decision nor the changelog.
ASKED = {"install": "deploying.html", "rust": "rust.html", "c++": "cpp.html", "HAKMEM_DECAY_MS": "options.html", "heap_resource": "heaps.html",
         "hakmem::heap": "heaps.html", "decay": None, "limit": None, "huge pages": None, "container": None, "jemalloc": "migrating.html"}
# Names in two lines that would have had room in one.
BROKEN = r"""
const found = new Set();
const texts = document.createTreeWalker(document.querySelector("article"), NodeFilter.SHOW_TEXT);
const parted = parts => parts.some(part => part.top > parts[0].top + 4);
for (let text = texts.nextNode(); text; text = texts.nextNode()) {
    const range = document.createRange();
    range.selectNodeContents(text);
    if (!parted([...range.getClientRects()]) || text.parentElement.closest("pre")) continue;
    for (const word of text.data.matchAll(/\w{2,}/g)) {
        range.setStart(text, word.index);
        range.setEnd(text, word.index + word[0].length);
        const parts = [...range.getClientRects()];
        if (!parted(parts)) continue;
        const wide = parts.reduce((sum, part) => sum + part.width, 0);
        const room = text.parentElement.closest("td, th, li, p, h1, h2, h3").clientWidth;
        if (wide < (text.parentElement.closest("td") ? 1e9 : room - 12)) found.add(word[0]);
    }
}
return [...found];
"""
# Of what a program prints: how much of each is beyond its box.
HIDDEN = """
return [...document.querySelectorAll("article pre > code")].filter(code => code.textContent.includes("ran your program")).map(
    code => code.scrollWidth - code.clientWidth);
"""
TYPED = """
const field = document.querySelector("[data-md-component=search-query]");
field.value = arguments[0];
field.dispatchEvent(new Event("keyup", {bubbles: true}));
"""
ANSWERS = "return [...document.querySelectorAll('.md-search-result__item > a')].map(one => one.href)"


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        """Nothing for each request."""


class Site(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service

        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        built = subprocess.run([REPO / "scripts/docs.sh", "--check", cls.folder.name], capture_output=True, text=True, timeout=200)
        if built.returncode == 77:
            raise unittest.SkipTest(built.stdout)
        if built.returncode:
            raise RuntimeError(built.stdout + built.stderr)
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=cls.folder.name))
        cls.addClassCleanup(server.server_close)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        cls.addClassCleanup(server.shutdown)
        cls.address = f"http://127.0.0.1:{server.server_port}"
        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM
        # Root may not use the sandbox, and containers have little /dev/shm.
        for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
            options.add_argument(argument)
        cls.browser = webdriver.Chrome(options=options, service=Service(DRIVER))
        cls.addClassCleanup(cls.browser.quit)

    def open(self, page, width, *, searched=False):
        """A page that is not searched does not read the words of all of them."""
        self.browser.execute_cdp_cmd("Network.enable", {})
        self.browser.execute_cdp_cmd("Network.setBlockedURLs", {"urls": [] if searched else ["*/search_index.json"]})
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.browser.get("about:blank")
        self.browser.get(f"{self.address}/{page}")

    def ask(self, script):
        return self.browser.execute_script(script)

    def test_names_stay_whole_and_pages_fit(self):
        for width in (PHONE, DESK):
            for page in PAGES:
                with self.subTest(page=page, width=width):
                    self.open(f"{page}.html", width)
                    self.assertEqual(self.ask(BROKEN), [])
                    self.assertLessEqual(self.ask("return document.scrollingElement.scrollWidth - innerWidth"), 0)

    def test_the_sample_of_the_first_page_is_shown_whole(self):
        for width in (TABLET, DESK):
            with self.subTest(width=width):
                self.open("index.html", width)
                self.assertEqual(self.ask(HIDDEN), [0])

    def test_each_option_has_an_anchor(self):
        table = (REPO / "src/config/options.def").read_text(encoding="utf-8")
        names = re.findall(r"^(?:OPTION|CHOICE|PER_CLASS|TEXT)\(\w+,\s*\"(HAKMEM_\w+)\"", table, re.MULTILINE)
        self.assertGreater(len(names), 30)
        self.open("options.html", DESK)
        ids = set(self.ask("return [...document.querySelectorAll('article [id]')].map(one => one.id)"))
        self.assertEqual([name for name in names if not {name.lower(), f"{name.lower()}n"} & ids], [])
        self.open("options.html#hakmem_stats_page", DESK)
        top = self.ask("return document.getElementById('hakmem_stats_page').getBoundingClientRect().top")
        self.assertLess(top, 900)

    def test_search_leads_to_what_is(self):
        from urllib.parse import quote

        from selenium.webdriver.support.ui import WebDriverWait

        wait = WebDriverWait(self.browser, 60)
        for words, wanted in ASKED.items():
            with self.subTest(words=words):
                # By a link first; then in the same page, which reads the words of all pages once.
                if words == next(iter(ASKED)):
                    self.open(f"index.html?q={quote(words)}", DESK, searched=True)
                else:
                    self.browser.execute_script(TYPED, "")
                    wait.until(lambda _: not self.ask(ANSWERS))
                    self.browser.execute_script(TYPED, words)
                wait.until(lambda _: self.ask(ANSWERS))
                first = self.ask(ANSWERS)[0].removeprefix(f"{self.address}/").partition("?")[0].partition("#")[0]
                self.assertFalse(first.startswith(("decisions/", "changelog")), first)
                self.assertIn(first, (wanted or first,))

    def test_plots_can_be_read_on_a_phone(self):
        self.open("index.html", PHONE)
        wide, natural = self.ask("const one = document.querySelector('article img[src$=\".svg\"]');"
                                 "return [one.getBoundingClientRect().width, one.naturalWidth]")
        # The smallest text has 9 px where the picture is as large as it was drawn.
        self.assertGreaterEqual(9 * wide / (natural * 0.75), 11)


if __name__ == "__main__":
    if not CHROMIUM or not DRIVER or not PYTHON.exists():
        print("no chromium with its driver, or no .venv: run scripts/setup.sh test")
        sys.exit(77)
    if Path(sys.prefix) != PYTHON.parents[1]:
        os.execv(PYTHON, [str(PYTHON), "-B", *sys.argv])
    unittest.main()
