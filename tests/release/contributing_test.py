"""CONTRIBUTING.md's walks are short and name what is there; what a walk leaves to a table is written nowhere else."""

import re
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
BEGIN, END = "// begin: written by", "// end: written"


def table_metrics():
    table = (ROOT / "python/hakmem/processes/figures_table.py").read_text()
    return set(re.findall(r"hakmem_\w+", table))


class Contributing(unittest.TestCase):
    def test_walks_have_at_most_ten_lines(self):
        walks = TEXT.partition("## Walks\n")[2].partition("\n## ")[0].strip().split("\n\n")
        self.assertEqual(len(walks), 5)
        for walk in walks:
            self.assertLessEqual(len(walk.splitlines()), 10, walk)
            self.assertRegex(walk, r"^\*\*.*\*\* \(", walk)

    def test_paths_and_commands_are_there(self):
        for path in re.findall(r"`((?:src|include|docs|tests|packaging|scripts|models|\.github)/[\w./-]*)", TEXT):
            self.assertTrue((ROOT / path).exists(), path)
        targets = set(re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1].split())
        self.assertEqual(set(), set(re.findall(r"(?:^|`)make ([a-z-]+)", TEXT, re.MULTILINE)) - targets)
        for name in re.findall(r"-R '?unit\.(\w+)", TEXT):
            tests = "".join(path.read_text() for path in (ROOT / "tests/unit").glob("*.cc"))
            self.assertRegex(tests, rf"TEST(_F)?\({name}")

    def test_the_walk_to_another_system_names_what_asks_the_system(self):
        """Headers of the C language, of threads, signals and dlopen are every system's."""
        systems = re.compile(r"^#include <((?:sys|linux|asm)/(?!sdt)|unistd|fcntl|elf|link|ucontext)", re.MULTILINE)
        found = {str(path.relative_to(ROOT)) for path in (ROOT / "src").rglob("*.[ch]") if systems.search(path.read_text())}
        outside = {name for name in found if not name.startswith(("src/os/", "src/override/"))}
        walk = TEXT.partition("**Another system**")[2].partition("\n\n")[0]
        named = set(re.findall(r"`(src/(?!os|override)[\w./]+)`", walk))
        self.assertEqual(outside, named)
        self.assertLessEqual({name for name in found if name.startswith("src/os/")} - set(re.findall(r"`(src/os/[\w.]+)`", walk)),
                             {"src/os/os.c", "src/os/stack.h"})

    def test_metrics_of_the_table_are_named_by_it_alone(self):
        names = table_metrics()
        self.assertGreaterEqual(len(names), 15)
        for path in (ROOT / "python/hakmem").rglob("*.py"):
            if path.name != "figures_table.py":
                found = {name for name in re.findall(r"hakmem_\w+", path.read_text())}
                found -= {"hakmem_slow_paths"}  # its counter is unwrapped
                self.assertEqual(set(), found & {name.removesuffix("_total") for name in names}, path)

    def test_the_crate_names_fields_of_the_statistics_in_the_written_part_alone(self):
        text = (ROOT / "packaging/rust/hakmem-sys/src/lib.rs").read_text()
        begin, end = text.index(BEGIN), text.index(END)
        fields = set(re.findall(r"^        (\w+): u64,", text[begin:end], re.MULTILINE))
        self.assertGreater(len(fields), 50)
        structure = re.search(r"typedef struct hakmem_stats \{(.*?)\} hakmem_stats;", (ROOT / "include/hakmem/stats.h").read_text(), re.DOTALL)[1]
        declared = re.sub(r"/\*.*?\*/", "", structure, flags=re.DOTALL)
        named = {name.strip() for part in re.findall(r"uint64_t ([^;]*);", declared) for name in part.split(",")}
        self.assertEqual(fields | {"time_ms"}, named)

    def test_what_is_promised_is_what_is_checked(self):
        checker = (ROOT / "packaging/abi/abi.py").read_text()
        grows = set(re.findall(r'"(\w+)"', re.search(r"^GROWS = \{(.*)\}", checker, re.MULTILINE)[1]))
        self.assertEqual(grows, set(re.findall(r"`(hakmem_\w+)`", TEXT.partition("Structures keep their fields")[2].partition("\n")[0])))
        soname = re.search(r"^symbol libhakmem.so SONAME (\S+)", (ROOT / "packaging/abi/last-release.txt").read_text(), re.MULTILINE)[1]
        self.assertIn(f"`{soname}`", TEXT)


if __name__ == "__main__":
    unittest.main()
