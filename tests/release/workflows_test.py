"""Workflows and issue forms: each step is a script of the tree or a make target, actions are first-party and pinned by hash,
permissions are what a job needs; forms ask for what hakmem can say. Status 77 without PyYAML, which the command's environment has."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
try:
    import yaml
except ImportError:
    python = ROOT / ".venv/bin/python"
    if python.exists() and Path(sys.prefix).resolve() != (ROOT / ".venv").resolve():
        os.execv(python, [str(python), "-B", *sys.argv])
    print("no PyYAML: scripts/setup.sh test")
    sys.exit(77)

PINNED = re.compile(r"actions/[\w-]+@[0-9a-f]{40}")
EXPANDED = re.compile(r"\$\{\{ *([\w.]+) *\}\}")
# What a step may write into a command: no title, branch or input, which strangers choose.
SAFE = re.compile(r"matrix\.\w+")
# An image by its digest, here or out of packaging/images.txt by packaging/image.sh.
FIXED_IMAGE = re.compile(r"\S+@sha256:[0-9a-f]{64}|\$\{\{ *needs\.image\.outputs\.image *\}\}")
WRITES = {"id-token", "attestations", "contents"}
FORM_FIELDS = {"textarea", "input", "dropdown", "checkboxes", "markdown"}


def load(text):
    found = yaml.safe_load(text)
    # YAML 1.1 reads the key `on` as true.
    return {("on" if key is True else key): value for key, value in found.items()}


def cells(job):
    """Each cell of the job's matrix."""
    matrix = job.get("strategy", {}).get("matrix", {})
    found = [dict(row) for row in matrix.get("include", [])]
    for name, values in matrix.items():
        if name != "include":
            found = [{**cell, name: value} for cell in found or [{}] for value in values]
    return found or [{}]


def make_targets():
    return set(re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1].split())


def expanded(text, cell):
    return EXPANDED.sub(lambda found: str(cell.get(found[1].removeprefix("matrix."), "")), text)


def step_faults(command, cell):
    for name in EXPANDED.findall(command):
        if not SAFE.fullmatch(name):
            yield f"{command}: {name} in a command"
        elif name.removeprefix("matrix.") not in cell:
            yield f"{command}: no {name}"
    words = expanded(command, cell).split()
    if len(command.strip().splitlines()) != 1 or re.search(r"[;&|<>`]|\$\(", command.replace("${{", "")):
        yield f"{command}: more than one command"
    if words[0] == "make":
        if len(words) < 2 or words[1] not in make_targets():
            yield f"{command}: no target {words[1:2]}"
        if any("=" not in word for word in words[2:]):
            yield f"{command}: more than a target and variables"
        return
    script = ROOT / words[0]
    if not words[0].startswith(("scripts/", "packaging/")) or not script.is_file():
        yield f"{command}: {words[0]} is no script of the tree"
    elif not os.access(script, os.X_OK):
        yield f"{command}: {words[0]} is not executable"


def permission_faults(name, job):
    granted = job.get("permissions")
    if not isinstance(granted, dict):
        yield f"{name}: permissions are not listed"
        return
    for what, right in granted.items():
        if right == "write" and what not in WRITES:
            yield f"{name}: writes {what}"
    steps = job["steps"]
    publishes = [step["run"] for step in steps if "packaging/publish.sh" in step.get("run", "")]
    attests = any("attest-build-provenance" in step.get("uses", "") for step in steps)
    if granted.get("id-token") == "write" and not (publishes or attests):
        yield f"{name}: id-token where nothing is published"
    if granted.get("attestations") == "write" and not attests:
        yield f"{name}: attestations where nothing is attested"
    if granted.get("contents") == "write" and not any("publish.sh forge" in run for run in publishes):
        yield f"{name}: writes contents and makes no release"
    if publishes and "environment" not in job:
        yield f"{name}: publishes without an environment that somebody must approve"


def image_of(job):
    found = job.get("container") or ""
    return found.get("image", "") if isinstance(found, dict) else found


def release_faults(jobs):
    """Of the workflow that publishes: no image by a tag that others can move, and none at all where something is published."""
    for name, job in jobs.items():
        images = {expanded(image_of(job), cell) if "matrix." in image_of(job) else image_of(job) for cell in cells(job)}
        images |= {service.get("image", "") for service in job.get("services", {}).values()}
        for image in images - {""}:
            if not FIXED_IMAGE.fullmatch(image):
                yield f"{name}: the image {image} has no digest"
        publishes = any("packaging/publish.sh" in step.get("run", "") for step in job["steps"])
        if publishes and images - {""}:
            yield f"{name}: publishes out of an image"
        if publishes and (job.get("permissions", {}).get("attestations") != "read" or "GH_TOKEN" not in job.get("env", {})):
            yield f"{name}: publishes what it cannot verify"
        if any("setup.sh" in step.get("run", "") for step in job["steps"]) and job.get("env", {}).get("HAKMEM_LOCKED") != 1:
            yield f"{name}: packages without hashes"


def faults(workflow):
    if workflow.get("permissions") != {}:
        yield "permissions: not empty by default"
    if {"pull_request_target", "workflow_run"} & set(workflow["on"]):
        yield "on: runs strangers' changes with rights"
    for name, job in workflow["jobs"].items():
        yield from permission_faults(name, job)
        if "timeout-minutes" not in job:
            yield f"{name}: no time limit"
        for step in job["steps"]:
            if ("run" in step) == ("uses" in step):
                yield f"{name}: a step that is neither a command nor an action"
            for cell in cells(job) if "run" in step else ():
                yield from step_faults(step["run"], cell)
            if "uses" in step and not PINNED.fullmatch(step["uses"]):
                yield f"{name}: {step['uses']} is not pinned, or not first-party"
            if "checkout@" in step.get("uses", "") and step.get("with", {}).get("persist-credentials") is not False:
                yield f"{name}: the checkout leaves its token in the tree"
        if "secrets." in str(job):
            yield f"{name}: a secret; registries trust the workflow"


class Workflows(unittest.TestCase):
    def setUp(self):
        self.paths = sorted((ROOT / ".github/workflows").glob("*.yml"))
        self.workflows = {path.stem: load(path.read_text()) for path in self.paths}

    def test_steps_actions_and_permissions(self):
        self.assertEqual(set(self.workflows), {"test", "nightly", "release"})
        for name, workflow in self.workflows.items():
            with self.subTest(name):
                self.assertEqual([], sorted(set(faults(workflow))))

    def test_hashes_name_their_version(self):
        for path in self.paths:
            for line in path.read_text().splitlines():
                if "uses:" in line:
                    self.assertRegex(line, r"@[0-9a-f]{40} # v\d+\.\d+\.\d+$")

    def test_what_publishes_is_fixed(self):
        jobs = self.workflows["release"]["jobs"]
        self.assertEqual([], sorted(release_faults(jobs)))
        image = [step for step in jobs["image"]["steps"] if step.get("run") == "packaging/image.sh build"]
        self.assertEqual(([step["id"] for step in image], jobs["image"]["outputs"]), (["image"], {"image": "${{ steps.image.outputs.image }}"}))

    def test_an_image_is_told_by_its_digest_alone(self):
        with tempfile.TemporaryDirectory() as folder:
            packaging, output = Path(folder) / "packaging", Path(folder) / "output"
            packaging.mkdir()
            shutil.copy(ROOT / "packaging/image.sh", packaging)
            for digest, status in (("sha256:" + "a" * 64, 0), ("sha256:" + "a" * 63, 1), ("sha256:not-looked-up", 1), ("", 1)):
                (packaging / "images.txt").write_text(f"# x\nbuild some/image:tag {digest}\n")
                output.write_text("")
                done = subprocess.run([packaging / "image.sh", "build"], capture_output=True, text=True, env=os.environ | {"GITHUB_OUTPUT": str(output)})
                self.assertEqual(done.returncode, status, done.stderr)
                self.assertEqual(output.read_text(), "" if status else f"image=some/image@{digest}\n")

    def test_tools_have_hashes(self):
        """Each file that pip installs in a release, and the npm that publishes."""
        locks = sorted([*ROOT.glob("packaging/**/requirements.lock"), *ROOT.glob("scripts/*requirements.lock")])
        self.assertEqual(5, len(locks))
        for lock in locks:
            for entry in re.split(r"\n(?=[a-zA-Z])", lock.read_text())[1:]:
                self.assertRegex(entry, r"^[\w.\[\]-]+==\S+[^\n]* \\\n    --hash=sha256:[0-9a-f]{64}", lock)
            self.assertNotIn("://", lock.read_text())
        for script in ("packaging/tools.sh", "scripts/docs.sh"):
            for line in (ROOT / script).read_text().splitlines():
                if re.search(r"pip\b.* install", line):
                    self.assertIn("--require-hashes", line, script)
        npm = json.loads((ROOT / "packaging/npm/publish/package-lock.json").read_text())["packages"]["node_modules/npm"]
        self.assertRegex(npm["integrity"], "^sha512-")
        self.assertNotIn("resolved", npm)

    def commands(self, name):
        return {expanded(step["run"], cell) for job in self.workflows[name]["jobs"].values() for cell in cells(job)
                for step in job["steps"] if "run" in step}

    def test_what_they_cover(self):
        test, nightly, release = (self.commands(name) for name in ("test", "nightly", "release"))
        self.assertLessEqual({"make test", *(f"make deb SUITE={suite}" for suite in ("bullseye", "bookworm", "trixie")),
                              *(f"scripts/test-build.sh {name}" for name in ("asan", "tsan", "debug", "gcc-11", "gcc-14", "clang-19"))}, test)
        self.assertLessEqual({f"make {target}" for target in ("test-long", "model", "targets", "fuzz", "real", "packages-check", "matrix")}, nightly)
        self.assertLessEqual({"scripts/release.sh --tagged build/release", *(f"packaging/publish.sh {kind} dist" for kind in ("pypi", "crates", "npm", "forge"))}, release)

    def test_nothing_is_published_before_it_is_checked_and_attested(self):
        jobs = self.workflows["release"]["jobs"]
        order = list(jobs)
        for before, after in zip(order, order[1:]):
            self.assertEqual(jobs[after].get("needs"), before)
        self.assertIn("scripts/release.sh --tagged build/release", [step.get("run") for step in jobs[order[1]]["steps"]])
        self.assertEqual(["image", "packages", "provenance", "publish", "forge"], order)

    def test_build_names_are_those_of_the_script(self):
        for command in self.commands("test"):
            if command.startswith("scripts/test-build.sh"):
                done = subprocess.run(command.split(), cwd=ROOT, env=os.environ | {"DRY_RUN": "1"}, capture_output=True, text=True)
                self.assertEqual((done.returncode, "ctest" in done.stdout), (0, True), command + done.stderr)

    def test_the_first_step_makes_a_checkout_usable(self):
        with tempfile.TemporaryDirectory() as home:
            variables = os.environ | {"HOME": home, "GITHUB_ENV": f"{home}/env"}
            variables.pop("GIT_CONFIG_GLOBAL", None)
            for _ in range(2):
                done = subprocess.run(["scripts/ci.sh"], cwd=ROOT, capture_output=True, text=True, env=variables)
                self.assertEqual(done.returncode, 0, done.stderr)
            written = (Path(home) / ".gitconfig").read_text()
            self.assertEqual(written.count(f"directory = {ROOT}\n"), 1, written)
            self.assertIn("DEBIAN_FRONTEND=noninteractive", (Path(home) / "env").read_text())

    def test_checks_can_fail(self):
        def of(job, **more):
            return sorted(faults({"on": {"push": None}, "permissions": {}, "jobs": {"a": job}} | more))
        tagged = {"steps": [{"run": "packaging/publish.sh npm dist"}], "permissions": {"attestations": "read"}, "env": {"GH_TOKEN": "x"}}
        self.assertEqual([], list(release_faults({"a": tagged})))
        fixed = "x@sha256:" + "a" * 64
        self.assertEqual([], list(release_faults({"a": {"container": {"image": fixed}, "steps": []}})))
        for more in ({"container": "rust:1"}, {"container": {"image": fixed}}, {"env": {}}, {"permissions": {}},
                     {"services": {"a": {"image": "b:1"}}}, {"container": "${{ matrix.image }}", "strategy": {"matrix": {"image": ["c:1"]}}}):
            self.assertTrue(list(release_faults({"a": tagged | more})), more)
        self.assertTrue(list(release_faults({"a": {"steps": [{"run": "scripts/setup.sh test"}]}})))
        good = {"permissions": {}, "timeout-minutes": 1, "steps": [{"run": "make test"}]}
        self.assertEqual(of(good), [])
        for step in ("make none-such", "scripts/none.sh", "echo", "make test; make docs", "make test\nmake docs",
                     "make test TITLE=${{ github.event.issue.title }}", "scripts/build.sh ${{ matrix.none }}", "scripts/docs_hooks.py",
                     "make test docs", "scripts/ci.sh $(curl x)"):
            self.assertTrue(of(good | {"steps": [{"run": step}]}), step)
        for uses in ("actions/checkout@v4", "other/action@" + "a" * 40, "actions/checkout@" + "a" * 39):
            self.assertTrue(of(good | {"steps": [{"uses": uses}]}), uses)
        for rights in ({"id-token": "write"}, {"contents": "write"}, {"packages": "write"}, "write-all", None):
            self.assertTrue(of(good | {"permissions": rights}), rights)
        self.assertTrue(of(good, permissions={"contents": "read"}))
        self.assertTrue(of(good, on={"pull_request_target": None}))
        self.assertTrue(of(good | {"env": {"TOKEN": "${{ secrets.TOKEN }}"}}))
        self.assertTrue(of(good | {"permissions": {"id-token": "write"}, "steps": [{"run": "packaging/publish.sh npm dist"}]}))


class Forms(unittest.TestCase):
    def setUp(self):
        folder = ROOT / ".github/ISSUE_TEMPLATE"
        self.texts = {path.stem: path.read_text() for path in folder.glob("*.yml")}
        self.forms = {name: load(text) for name, text in self.texts.items() if name != "config"}

    def test_shape(self):
        self.assertEqual(set(self.forms), {"fault", "cost", "wish"})
        self.assertIs(load(self.texts["config"])["blank_issues_enabled"], False)
        for name, form in self.forms.items():
            ids = [field["id"] for field in form["body"] if field["type"] != "markdown"]
            self.assertEqual(len(ids), len(set(ids)), name)
            self.assertTrue(form["name"] and form["description"])
            for field in form["body"]:
                self.assertIn(field["type"], FORM_FIELDS)
                self.assertTrue(field["attributes"].get("label") or field["attributes"].get("value"), name)

    def test_faults_and_costs_ask_for_proof_and_statistics(self):
        for name in ("fault", "cost"):
            needed = {field["id"] for field in self.forms[name]["body"] if field.get("validations", {}).get("required")}
            self.assertLessEqual({"proof", "statistics", "repeat", "system"}, needed)
            self.assertIn("hakmem run --proof -- your-program", self.texts[name])
            self.assertIn("HAKMEM_STATS=text", self.texts[name])

    def test_what_they_name_is_there(self):
        options = set(re.findall(r'"(HAKMEM_\w+)"', (ROOT / "src/config/options.def").read_text()))
        commands = {path.stem for path in (ROOT / "python/hakmem/commands").glob("*.py")}
        for name, text in self.texts.items():
            self.assertEqual(set(), set(re.findall(r"HAKMEM_[A-Z_]+", text)) - options, name)
            self.assertEqual(set(), set(re.findall(r"hakmem ([a-z]+)(?= (?:--proof |-- |PID)|, which)", text)) - commands, name)
            for path in re.findall(r"\.\./blob/main/([\w./-]+)", text) + re.findall(r"docs/[\w-]+\.md", text):
                self.assertTrue((ROOT / path).exists(), path)
        self.assertIn('"--proof"', (ROOT / "python/hakmem/commands/run.py").read_text())

    def test_the_proof_they_ask_for(self):
        command = ROOT / ".venv/bin/hakmem"
        library = ROOT / "build/release/libhakmem.so"
        if not command.exists() or not library.exists():
            self.skipTest("no command, or no release build")
        done = subprocess.run([command, "run", "--proof", "--set", "STATS=text", "--", "perl", "-e", "1"], capture_output=True, text=True,
                              timeout=60, cwd=ROOT)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stderr, r"hakmem run: .*served")
        self.assertIn("figures of process", done.stderr)


if __name__ == "__main__":
    unittest.main()
