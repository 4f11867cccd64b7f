"""npm_test.py LIBRARY CC: packs the npm package with a built library, installs it from the file into an empty folder without
network, and runs Node programs by hakmem-node. Exits with status 77 and one line where node or npm is absent."""
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
PACKAGE = HERE.parent
TIMEOUT = 60

work: Path  # the temporary folder of this run
library: Path
compiler: str


def clean_environment(**more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("HAKMEM_", "NODE_", "npm_config_")) and k != "LD_PRELOAD"}
    return {**kept, "npm_config_cache": str(work / "cache"), "npm_config_update_notifier": "false",
            "npm_config_loglevel": "error", **more}


def run(*command: str | Path, input: str | None = None, **options) -> subprocess.CompletedProcess:
    options.setdefault("env", clean_environment())
    arguments = [str(c) for c in command]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          start_new_session=True, **options) as process:
        try:
            output, errors = process.communicate(input, timeout=TIMEOUT)
        finally:
            end_group(process)
    return subprocess.CompletedProcess(arguments, process.returncode, output, errors)


def end_group(process: subprocess.Popen) -> None:
    """Also what the command has started and left behind: it would hold the pipes."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def must(*command: str | Path, **options) -> str:
    done = run(*command, **options)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def pack(out: Path, **options) -> Path:
    return Path(must(PACKAGE / "package.sh", out, library, **options).strip())


def install(archive: Path, project: Path) -> Path:
    """The starter as npm links it."""
    project.mkdir(parents=True)
    (project / "package.json").write_text('{"name": "project", "version": "1.0.0", "private": true}')
    must("npm", "install", "--offline", "--no-audit", "--no-fund", archive, cwd=project)
    return project / "node_modules/.bin/hakmem-node"


def served(errors: str) -> int:
    """Slabs and extents handed out, by the library's own line at exit; 0 without one."""
    lines = re.findall(r"^\[SS_OS_STATS\] alloc=(\d+)", errors, re.MULTILINE)
    return int(lines[-1]) if lines else 0


class Starter(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.archive = pack(work / "out")
        cls.project = work / "project"
        cls.starter = install(cls.archive, cls.project)
        cls.library = next((cls.project / "node_modules/hakmem/lib").glob("*/libhakmem.so"))

    def node(self, *arguments: str, **options) -> subprocess.CompletedProcess:
        more = options.pop("more", {})
        return run(self.starter, *arguments, env=clean_environment(HAKMEM_SS_OS_STATS="1", **more), **options)

    def test_two_packages_have_the_same_bytes(self):
        again = pack(work / "again", preexec_fn=lambda: os.umask(0o077))
        self.assertEqual(*(hashlib.sha256(p.read_bytes()).hexdigest() for p in (self.archive, again)))

    def test_package_is_whole_and_runs_nothing_when_installed(self):
        folder = self.project / "node_modules/hakmem"
        for name in ("LICENSE", "README.md", "index.js", "index.d.ts", "bin/hakmem-node"):
            self.assertTrue((folder / name).is_file(), name)
        self.assertFalse((folder / "tests").exists())
        manifest = json.loads((folder / "package.json").read_text())
        self.assertNotIn("scripts", manifest)
        self.assertNotIn("dependencies", manifest)
        self.assertEqual(manifest["version"], must(PACKAGE.parent / "version.sh").strip())

    def test_where_the_sources_are_is_in_the_package_when_it_is_said(self):
        out = work / "with-repository"
        must(PACKAGE / "package.sh", out, library, env=clean_environment() | {"HAKMEM_REPOSITORY": "https://forge.example/a/b"})
        manifests = [json.loads(must("tar", "-xzOf", archive, "package/package.json")) for archive in (next(out.iterdir()), self.archive)]
        self.assertEqual(manifests[0].pop("repository"), {"type": "git", "url": "git+https://forge.example/a/b.git"})
        self.assertEqual(*manifests)

    def test_script_finds_the_library(self):
        program = "const h = require('hakmem'); console.log(JSON.stringify([h.library, h.version]))"
        found, version = json.loads(must("node", "-e", program, cwd=self.project))
        self.assertEqual(Path(found).resolve(), self.library.resolve())
        self.assertEqual(version, must(PACKAGE.parent / "version.sh").strip())

    def test_node_is_served_and_only_by_the_starter(self):
        done = self.node("-e", "console.log(1)")
        self.assertEqual((done.returncode, done.stdout), (0, "1\n"))
        self.assertGreater(served(done.stderr), 0, done.stderr)
        without = run("node", "-e", "console.log(1)", env=clean_environment(HAKMEM_SS_OS_STATS="1"))
        self.assertEqual((without.returncode, served(without.stderr)), (0, 0))

    def test_all_figures_are_printed(self):
        done = run(self.starter, "-e", "Buffer.alloc(8 << 20, 1)", env=clean_environment(HAKMEM_STATS="json"))
        figures = json.loads(done.stderr[done.stderr.index("{"):])
        self.assertEqual(figures["hakmem"], must(PACKAGE.parent / "version.sh").strip())

    def test_npm_finds_the_starter(self):
        done = run("npm", "exec", "--offline", "--", "hakmem-node", "-p", "process.env.LD_PRELOAD", cwd=self.project)
        self.assertEqual(done.stdout.strip(), str(self.library), done.stderr)

    def test_arguments_and_input_arrive_as_they_are(self):
        arguments = ["a b", "", "*", "it's \"quoted\"", "two\nlines", "$HOME", "--", "-e"]
        program = "const fs = require('fs');" \
            "console.log(JSON.stringify([process.argv.slice(1), fs.readFileSync(0, 'utf8')]))"
        done = self.node("-e", program, "--", *arguments, input="line 1\nline 2")
        self.assertEqual(json.loads(done.stdout), [arguments, "line 1\nline 2"], done.stderr)

    def test_exit_status_is_nodes(self):
        for program, status in (("process.exit(7)", 7), ("throw new Error('thrown')", 1),
                                ("process.kill(process.pid, 'SIGTERM'); setTimeout(() => {}, 60000)", -signal.SIGTERM),
                                ("process.abort()", -signal.SIGABRT)):
            self.assertEqual(self.node("-e", program).returncode, status, program)

    def test_node_keeps_the_process_and_its_files_and_gets_signals(self):
        program = "process.on('SIGINT', () => { console.log('interrupted'); process.exit(5); });" \
            "setTimeout(() => {}, 60000); require('fs').writeSync(3, 'x'); console.log(process.pid)"
        reading, writing = os.pipe()
        # File 3, as systemd hands sockets to a service.
        command = ["sh", "-c", f'exec "$0" "$@" 3>&{writing}', str(self.starter), "-e", program]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=clean_environment(),
                              pass_fds=[writing], start_new_session=True) as process:
            try:
                self.assertEqual(int(process.stdout.readline()), process.pid)
                self.assertEqual(os.read(reading, 1), b"x")
                process.send_signal(signal.SIGINT)
                rest, _ = process.communicate(timeout=TIMEOUT)
            finally:
                end_group(process)
                os.close(reading)
                os.close(writing)
        self.assertEqual((rest, process.returncode), ("interrupted\n", 5))

    def test_worker_threads_exchange_buffers(self):
        done = self.node(HERE / "workers.js")
        self.assertEqual((done.returncode, done.stdout), (0, "workers: 4, blocks: 800, wrong: 0\n"), done.stderr)
        self.assertGreater(served(done.stderr), 100)

    def test_started_processes_are_served(self):
        program = "const done = require('child_process').spawnSync(process.execPath, ['-e', '0']);" \
            "process.stdout.write(done.stderr); process.exit(done.status)"
        done = self.node("-e", program)
        self.assertEqual(done.returncode, 0)
        self.assertGreater(served(done.stdout), 0, done.stdout)

    def test_other_preloaded_libraries_stay(self):
        other = work / "other.so"
        source = '#include <stdio.h>\n__attribute__((constructor)) static void start(void) { fputs("other is here\\n", stderr); }\n'
        must(compiler, "-shared", "-fPIC", "-x", "c", "-", "-o", other, input=source)
        done = self.node("-p", "process.env.LD_PRELOAD", more={"LD_PRELOAD": str(other)})
        self.assertEqual(done.stdout.strip(), f"{self.library}:{other}")
        self.assertIn("other is here", done.stderr)
        self.assertGreater(served(done.stderr), 0)
        # hakmem-node in a program that was started by hakmem-node.
        done = self.node("-p", "process.env.LD_PRELOAD", more={"LD_PRELOAD": f"{self.library}:{other}"})
        self.assertEqual(done.stdout.strip(), f"{self.library}:{other}")

    def test_folder_with_a_space(self):
        project = work / "with a space"
        shutil.copytree(self.project, project, symlinks=True)
        done = run(project / "node_modules/.bin/hakmem-node", "-p", "process.pid > 0", env=clean_environment(HAKMEM_SS_OS_STATS="1"))
        self.assertEqual((done.returncode, done.stdout), (0, "true\n"), done.stderr)
        self.assertGreater(served(done.stderr), 0, done.stderr)

    def assert_refused(self, done: subprocess.CompletedProcess, status: int, words: str) -> None:
        self.assertEqual((done.returncode, done.stdout), (status, ""))
        self.assertRegex(done.stderr, rf"\Ahakmem-node: [^\n]*{words}[^\n]*\n\Z")

    def test_missing_library_is_one_line(self):
        project = work / "without library"
        shutil.copytree(self.project, project, symlinks=True)
        shutil.rmtree(project / "node_modules/hakmem/lib")
        self.assert_refused(run(project / "node_modules/.bin/hakmem-node", "-p", "1"), 126, "libhakmem.so is missing")
        self.assertEqual(must("node", "-p", "require('hakmem').library", cwd=project), "null\n")

    def test_colon_in_the_path_is_one_line(self):
        project = work / "with:colon"
        shutil.copytree(self.project, project, symlinks=True)
        self.assert_refused(run(project / "node_modules/.bin/hakmem-node", "-p", "1"), 126, "colon")

    def with_tools(self, **scripts: str) -> subprocess.CompletedProcess:
        """The starter with other tools in front of the system's."""
        tools = Path(tempfile.mkdtemp(dir=work))
        for name, script in scripts.items():
            (tools / name).write_text(f"#!/bin/sh\n{script}\n")
            (tools / name).chmod(0o755)
        return run(self.starter, "-p", "1", env=clean_environment(PATH=f"{tools}:{os.environ['PATH']}"))

    def test_other_systems_are_one_line(self):
        self.assert_refused(self.with_tools(uname="echo Darwin"), 126, "runs on Linux, not on Darwin")
        self.assert_refused(self.with_tools(uname='[ "$1" = -s ] && echo Linux || echo riscv64'), 126, "for riscv64")
        self.assert_refused(self.with_tools(getconf="echo unknown variable >&2; exit 1"), 126, "needs glibc")

    def test_without_node_it_is_one_line(self):
        tools = Path(tempfile.mkdtemp(dir=work))
        for name in ("sh", "readlink", "uname", "getconf"):
            (tools / name).symlink_to(shutil.which(name))
        self.assert_refused(run(self.starter, "-p", "1", env=clean_environment(PATH=str(tools))), 127, "node is not in PATH")

    def test_what_is_no_library_is_not_packed(self):
        object_file = work / "file.o"
        must(compiler, "-c", "-x", "c", "-", "-o", object_file, input="int nothing;\n")
        for wrong in ([HERE / "workers.js"], [object_file], [library, library]):
            done = run(PACKAGE / "package.sh", work / "wrong", *wrong)
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertRegex(done.stderr, "is no shared library|two libraries for linux-")
            self.assertEqual(list((work / "wrong").iterdir()), [])


if __name__ == "__main__":
    for tool in ("node", "npm"):
        if shutil.which(tool) is None:
            print(f"{tool} is not installed")
            sys.exit(77)
    library, compiler = Path(sys.argv[1]), sys.argv[2]
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder).resolve()
        unittest.main(argv=sys.argv[:1], verbosity=1)
