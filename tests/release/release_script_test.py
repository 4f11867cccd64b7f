"""release_script_test.py BUILD: scripts/release.sh passes a commit that can be released and names what stands against others."""

import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(sys.argv.pop(1)).resolve()
COPIED = ("CMakeLists.txt", "CHANGELOG.md", ".gitignore", "scripts", "packaging", "include", "src/config/options.def", "python/pyproject.toml", "lab/pyproject.toml",
          "docs/options.md", "python/hakmem/processes/figures_table.py")


class Release(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.tree = Path(cls.folder.name) / "tree"
        for name in COPIED:
            source, target = ROOT / name, cls.tree / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, target)
        cls.version = re.search(r"^project\(hakmem VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text(), re.MULTILINE)[1]
        (cls.tree / "CHANGELOG.md").write_text(f"# Changelog\n\n## {cls.version} (2026-11-25)\n\nFirst.\n")
        lists = cls.tree / "packaging/abi/last-release.txt"
        lists.write_text(re.sub(r"^# hakmem \S+:", f"# hakmem {cls.version}:", lists.read_text()))
        images = cls.tree / "packaging/images.txt"
        images.write_text(re.sub(r"sha256:\S+", f"sha256:{'a' * 64}", images.read_text()))
        cls.git("init", "--quiet", "--initial-branch=main")
        cls.git("add", "--all")
        cls.git("commit", "--quiet", "-m", "a tree")

    @classmethod
    def git(cls, *arguments):
        subprocess.run(["git", "-C", cls.tree, "-c", "user.name=test", "-c", "user.email=test@localhost", *arguments], check=True,
                       capture_output=True)

    def tearDown(self):
        self.git("reset", "--quiet", "--hard", "main")
        self.git("clean", "--quiet", "-fd")
        for tag in subprocess.run(["git", "-C", self.tree, "tag"], capture_output=True, text=True).stdout.split():
            self.git("tag", "--delete", tag)

    def check(self, *arguments):
        done = subprocess.run([self.tree / "scripts/release.sh", *arguments, BUILD], capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    def change(self, name, old, new):
        path = self.tree / name
        text = path.read_text()
        self.assertIn(old, text)
        path.write_text(text.replace(old, new, 1))

    def refused(self, told, *arguments, failures=2):
        """Changes that are not committed are a fault of their own."""
        status, output = self.check(*arguments)
        self.assertEqual(status, 1, output)
        self.assertEqual(output.count("FAILED"), failures, output)
        self.assertIn(told, output)

    def test_a_commit_that_can_be_released(self):
        status, output = self.check()
        self.assertEqual(status, 0, output)
        self.assertIn("0 of 10 items failed", output)
        self.refused(f"the tag v{self.version} is not the commit HEAD", "--tagged", failures=1)
        self.git("tag", "-a", "-m", "x", f"v{self.version}")
        self.assertEqual(self.check("--tagged")[0], 0)
        self.refused("a released version never changes", failures=1)

    def test_a_version_that_differs(self):
        self.change("include/hakmem/hakmem.h", f'STRING "{self.version}"', 'STRING "7.0.0"')
        self.refused("hakmem.h has 7.0.0")

    def test_a_version_of_a_package(self):
        self.change("packaging/npm/package.json", '"0.0.0"', '"7.0.0"')
        self.refused("has a version of its own")

    def test_an_older_version(self):
        self.git("tag", "v99.0.0")
        self.refused("v99.0.0 is a tag already", failures=1)

    def test_the_changelog(self):
        self.change("CHANGELOG.md", "(2026-11-25)", "(unreleased)")
        self.refused("is unreleased")
        self.change("CHANGELOG.md", f"## {self.version}", "## 0.0.1")
        self.refused("has no part")

    def test_a_dirty_tree(self):
        (self.tree / "new").write_text("x")
        self.refused("?? new", failures=1)

    def test_the_abi(self):
        self.change("include/hakmem/stats.h", "uint64_t live; ", "uint64_t alive; ")
        self.refused("gone: field hakmem_stats")

    @unittest.skipUnless((BUILD / "tools/gen_figures").exists(), "no generators in this build")
    def test_a_table_that_was_not_written_anew(self):
        self.change("docs/options.md", "# Options", "# Option")
        self.refused("< # Options")
        self.change("docs/options.md", "# Option", "# Options")
        self.change("python/hakmem/processes/figures_table.py", "hakmem_used_bytes", "hakmem_other_bytes")
        self.refused("hakmem_other_bytes")

    def test_a_list_of_hashes_that_is_older(self):
        self.change("packaging/wheel/requirements.txt", "twine==", "twine>=")
        self.refused("packaging/wheel/requirements.lock is older than packaging/wheel/requirements.txt")

    def test_an_image_that_others_can_change(self):
        self.change("packaging/images.txt", "sha256:" + "a" * 64, "sha256:not-looked-up")
        self.refused("the digest of buildpack-deps:bookworm is not known")

    def test_a_list_of_another_version(self):
        self.change("packaging/abi/last-release.txt", f"# hakmem {self.version}:", "# hakmem 0.0.1:")
        self.refused("scripts/abi.sh --update")


if __name__ == "__main__":
    unittest.main()
