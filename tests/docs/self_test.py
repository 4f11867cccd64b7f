"""links.py, commands.py and words.py find what they are there to find, in a small tree of documents made for it."""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent

GOOD = """# Title

A [page](docs/page.md#second-heading-really), [itself](#title), [far](https://example.org/x), a [folder](docs) and `[no](link)`.

```sh
hakmem --version >made
test -e tree && test -e build/release/library
```

```sh
grep -q 1.0 made
```

<!-- not run: takes hours -->
```sh
exit 9
```

```text
[not](a-link.md)
```
"""

PAGE = "# Page\n\n## Second heading, *really*\n\n[up](../README.md)\n"


class Documents(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        (self.root / "docs").mkdir()
        (self.root / ".venv/bin").mkdir(parents=True)
        (self.root / "build/release").mkdir(parents=True)
        (self.root / "build/release/library").touch()
        (self.root / "tree").touch()
        command = self.root / ".venv/bin/hakmem"
        command.write_text("#!/bin/sh\necho hakmem 1.0\n")
        command.chmod(0o755)
        self.write(GOOD, PAGE)

    def write(self, readme, page=PAGE):
        (self.root / "README.md").write_text(readme)
        (self.root / "docs/page.md").write_text(page)

    def check(self, script, *arguments):
        done = subprocess.run([sys.executable, "-B", str(HERE / script), *arguments], capture_output=True, text=True,
                              timeout=60, env=os.environ | {"HAKMEM_PROFILE": "lean"})
        return done.returncode, done.stdout + done.stderr

    def links(self, readme, page=PAGE):
        self.write(readme, page)
        return self.check("links.py", str(self.root))

    def commands(self, readme, page=PAGE):
        self.write(readme, page)
        return self.check("commands.py", "--root", str(self.root))

    def words(self, readme, page=PAGE):
        self.write(readme, page)
        return self.check("words.py", str(self.root))

    def assert_fault(self, result, *texts):
        status, output = result
        self.assertEqual(status, 1, output)
        for text in texts:
            self.assertIn(text, output)

    def test_good_documents_pass(self):
        self.assertEqual(self.links(GOOD)[0], 0)
        status, output = self.commands(GOOD)
        self.assertEqual(status, 0, output)
        self.assertIn("2 fences run, 1 marked as not run, 0 faults", output)

    def test_links(self):
        self.assert_fault(self.links("[a](docs/none.md)"), "README.md:1: docs/none.md: no such file")
        self.assert_fault(self.links("[a](docs/page.md#none)"), "docs/page.md#none: no such heading")
        self.assert_fault(self.links("# One\n\n[a](#two)"), "README.md:3: #two: no such heading")
        self.assert_fault(self.links("[a](../outside)"), "leaves the source tree")
        (self.root / "SECURITY.md").write_text("[a](docs/none-such.md)")
        self.assert_fault(self.links(GOOD), "SECURITY.md:1: docs/none-such.md: no such file")
        (self.root / "SECURITY.md").unlink()
        self.assert_fault(self.links(GOOD, "[a]: none.md"), "page.md:1: none.md: no such file")
        self.assert_fault(self.links("`[code](x.md)` and [a\\_b [c]](y.md)"), "y.md: no such file")

    def test_a_failing_command(self):
        self.assert_fault(self.commands("```sh\ntrue\nfalse\ntrue\n```\n"), "README.md:1: status 1")
        self.assert_fault(self.commands("```sh\nnone-such-command\n```\n"), "status 127", "not found")

    def test_settings_of_the_caller_do_not_reach_the_commands(self):
        status, output = self.commands('```sh\ntest -z "$HAKMEM_PROFILE"\n```\n')
        self.assertEqual(status, 0, output)

    def test_commands_outside_of_fences(self):
        self.assert_fault(self.commands("Type\n\n    hakmem run -- program\n"), "README.md:3: a command outside of an sh fence")
        self.assert_fault(self.commands("```\nmake test\n```\n"), "README.md:1: a command outside of an sh fence: make test")
        self.assert_fault(self.commands("```bash\nls\n```\n"), "written as `sh`")
        self.assert_fault(self.commands("```text\n$ ls\n```\n"), "a command outside of an sh fence: $ ls")
        status, output = self.commands("```\nhakmem run: served\n```\n\n    one box -> another\n")
        self.assertEqual(status, 0, output)

    def test_a_mark_needs_a_reason_and_stands_above(self):
        self.assert_fault(self.commands("<!-- not run: -->\n```sh\nfalse\n```\n"), "status 1")
        self.assert_fault(self.commands("<!-- not run: root -->\n\n```sh\nfalse\n```\n"), "status 1")

    def test_words(self):
        status, output = self.words("word " * 900, "word " * 18000)
        self.assertEqual(status, 0, output)
        self.assert_fault(self.words("word " * 901), "README.md: 901 words, at most 900: too long")
        self.assert_fault(self.words("", "word " * 18001), "docs/: 18,001 words, at most 18,000: too long")

    def test_what_programs_write_and_decisions_do_not_count(self):
        (self.root / "docs/decisions").mkdir()
        (self.root / "docs/decisions/001.md").write_text("word " * 18001)
        (self.root / "docs/table.md").write_text("# Table\n\n<!-- Written by `x` -->\n" + "word " * 18001)
        part = "<!-- begin: written by x.py -->\n" + "word\n" * 18001 + "<!-- end -->\n"
        status, output = self.words("", "two words\n" + part)
        self.assertEqual(status, 0, output)
        self.assertIn("docs/: 2 words", output)
        self.assert_fault(self.words("", part.replace("begin", "start")), "too long")


if __name__ == "__main__":
    unittest.main()
