"""packaging/publish.sh: what it would send to whom, with stand-ins for the programs that reach a registry; nothing that is not as it was
built, and nothing without an identity."""

import hashlib
import json
import os
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VERSION = re.search(r"^project\(hakmem VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text(), re.MULTILINE)[1]
# curl answers as the forge and crates.io do.
CURL = """case "$*" in *crates.io/api*) cat >>"$LOG"; echo '{"token": "of-crates-io"}' ;; *) echo '{"value": "of-the-forge"}' ;; esac"""
STAND_INS = {"gh": '[ "$1" != attestation ] || [[ "$3" != ${FORGED:-none} ]] || exit 1', "npm": "", "curl": CURL,
             # Packages the same bytes as lie in DIST.
             "cargo": 'if [ "$1" = package ]; then mkdir -p "$CARGO_TARGET_DIR/package"; cp "$DIST"/*.crate "$CARGO_TARGET_DIR/package/"; fi; '
                      'echo "token $CARGO_REGISTRY_TOKEN" >>"$LOG"'}


class Publish(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.work = Path(folder.name)
        self.dist, self.log = self.work / "dist", self.work / "log"
        for name in (f"hakmem-{VERSION}-py3-none-manylinux_2_28_x86_64.whl", f"hakmem-sys-{VERSION}.crate", f"hakmem-{VERSION}.crate",
                     f"hakmem-{VERSION}.tgz", f"hakmem-{VERSION}.tar.xz", f"hakmem-{VERSION}-notes.md", "debian/libhakmem0.deb",
                     "recipes/nix/default.nix"):
            path = self.dist / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(name)
        files = sorted(path for path in self.dist.rglob("*") if path.is_file())
        (self.dist / "SHA256SUMS").write_text("".join(
            f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(self.dist)}\n" for path in files))
        tools = self.work / "bin"
        tools.mkdir()
        for name, does in STAND_INS.items():
            (tools / name).write_text(f'#!/bin/bash\n{does}\necho "{name} $*" >>"$LOG"\n')
            (tools / name).chmod(0o755)
        self.locked = self.work / "npm"
        (self.locked / "node_modules/.bin").mkdir(parents=True)
        (self.locked / "node_modules/.bin/npm").symlink_to(tools / "npm")
        if "CARGO_REGISTRY_TOKEN" in os.environ:
            del os.environ["CARGO_REGISTRY_TOKEN"]

    def publish(self, *arguments, **variables):
        """(status, what it printed, what it called)"""
        self.log.write_text("")
        env = os.environ | {"PATH": f"{self.work / 'bin'}:{os.environ['PATH']}", "LOG": str(self.log), "DIST": str(self.dist), "NPM_TOOLS": str(self.locked),
                            "GITHUB_REPOSITORY": "some/where", "GITHUB_REF": f"refs/tags/v{VERSION}", "GITHUB_SHA": "b" * 40} | variables
        done = subprocess.run([ROOT / "packaging/publish.sh", *arguments], capture_output=True, text=True, env=env, timeout=60)
        return done.returncode, done.stdout + done.stderr, self.log.read_text()

    def test_a_dry_run_sends_nothing(self):
        for kind, what in (("pypi", "twine upload"), ("crates", "cargo publish"), ("npm", "npm publish"), ("forge", "gh release create")):
            status, output, called = self.publish(kind, str(self.dist), "--dry-run")
            self.assertEqual(status, 0, output)
            self.assertIn(f"{what}", output)
            self.assertIn("would run: ", output)
            self.assertNotRegex(called, r"publish|upload|release create|curl")

    def test_npm(self):
        status, output, called = self.publish("npm", str(self.dist))
        self.assertEqual((status, called.splitlines()[-1]), (0, f"npm publish --provenance --access public {self.dist}/hakmem-{VERSION}.tgz"), output)
        # By the npm whose files have the hashes of packaging/npm/publish.
        self.assertIn(f"npm ci --ignore-scripts --no-audit --no-fund --prefix {self.locked}\n", called)

    def test_what_the_forge_does_not_attest(self):
        """Its sums fit: whoever changed a file changed them too."""
        given = {"ACTIONS_ID_TOKEN_REQUEST_URL": "https://forge.example/token", "ACTIONS_ID_TOKEN_REQUEST_TOKEN": "request"}
        for kind, name in (("pypi", "*.whl"), ("crates", f"*/hakmem-{VERSION}.crate"), ("npm", "*.tgz"), ("forge", "*/libhakmem0.deb"),
                           ("forge", "*/SHA256SUMS"), ("forge", "*/default.nix")):
            status, output, called = self.publish(kind, str(self.dist), FORGED=name, **given)
            self.assertEqual(status, 1, output)
            self.assertIn("has no attestation of the release workflow for refs/tags/v", output)
            self.assertNotRegex(called, r"publish |upload|release create|curl")
        status, output, called = self.publish("npm", str(self.dist))
        self.assertIn(f"--repo some/where --signer-workflow some/where/.github/workflows/release.yml --source-ref refs/tags/v{VERSION} "
                      f"--source-digest {'b' * 40}", called)
        for variable in ("GITHUB_REPOSITORY", "GITHUB_REF", "GITHUB_SHA"):
            status, output, called = self.publish("npm", str(self.dist), **{variable: ""})
            self.assertNotEqual(status, 0)
            self.assertEqual(called, "")

    def test_crates_in_order_with_a_token_that_was_exchanged(self):
        given = {"ACTIONS_ID_TOKEN_REQUEST_URL": "https://forge.example/token?a=1", "ACTIONS_ID_TOKEN_REQUEST_TOKEN": "request"}
        status, output, called = self.publish("crates", str(self.dist), **given)
        self.assertEqual(status, 0, output)
        self.assertIn("bearer request https://forge.example/token?a=1&audience=crates.io", called)
        self.assertIn(json.dumps({"jwt": "of-the-forge"}), called)
        sent = re.findall(r"token (\S+)\ncargo publish .*/crates/([\w-]+)/Cargo.toml", called)
        self.assertEqual(sent, [("of-crates-io", "hakmem-sys"), ("of-crates-io", "hakmem")])
        self.assertNotIn("of-crates-io", output)
        status, output, called = self.publish("crates", str(self.dist), ACTIONS_ID_TOKEN_REQUEST_URL="")
        self.assertNotEqual(status, 0)
        self.assertNotIn("cargo publish", called)

    def test_the_release_has_all_files(self):
        status, output, called = self.publish("forge", str(self.dist))
        self.assertEqual(status, 0, output)
        for name in ("SHA256SUMS", "debian/libhakmem0.deb", f"hakmem-{VERSION}-recipes.tar.xz", f"hakmem-{VERSION}.tar.xz",
                     f"gh release create v{VERSION} --verify-tag", f"--notes-file {self.dist}/hakmem-{VERSION}-notes.md"):
            self.assertIn(name, called)

    def test_what_is_not_as_it_was_built(self):
        (self.dist / f"hakmem-{VERSION}.tgz").write_text("other bytes")
        for kind in ("pypi", "crates", "npm", "forge"):
            status, output, called = self.publish(kind, str(self.dist))
            self.assertEqual((status, called), (1, ""), kind)
            self.assertIn("is not as it was built", output)

    def test_what_is_missing_or_unknown(self):
        self.assertEqual(self.publish("npm", str(self.work))[0], 1)
        self.assertEqual(self.publish("gem", str(self.dist))[0], 2)
        self.assertEqual(self.publish("npm")[0], 2)
        (self.dist / "SHA256SUMS").write_text("".join(line for line in (self.dist / "SHA256SUMS").read_text().splitlines(True) if ".whl" not in line))
        next(self.dist.glob("*.whl")).unlink()
        status, output, _ = self.publish("pypi", str(self.dist), "--dry-run")
        self.assertEqual(status, 1)
        self.assertIn("has no hakmem-", output)


if __name__ == "__main__":
    unittest.main()
