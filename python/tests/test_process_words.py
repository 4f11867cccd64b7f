"""What a process's user makes the kernel say of it: a command line of gigabytes, paths of mappings
of 4 KB, descriptors without end."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from hakmem.errors import UserError
from hakmem.processes import process_memory, stats_page
from hakmem.profiles import outside
from hakmem.running import process_words, threads

ROOT = Path(__file__).resolve().parents[2]
MB = 1 << 20

# Says that its words lie in zeros that take no memory; argument: how many megabytes.
LONG_WORDS = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>
int main(int argc, char **argv) {
  size_t n = strtoul(argv[1], 0, 10) << 20;
  char *words = mmap(0, n, 3, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  char text[4096] = "", *at;
  FILE *f = fopen("/proc/self/stat", "r");
  fread(text, 1, sizeof text - 1, f);
  unsigned long v[64] = {0};
  int k = 3;
  for (at = strtok(strrchr(text, ')') + 2, " "); at && k < 64; at = strtok(0, " "))
    v[k++] = strtoul(at, 0, 10);
  struct prctl_mm_map m = {
    .start_code = v[26], .end_code = v[27], .start_data = v[45], .end_data = v[46],
    .start_brk = v[47], .brk = (unsigned long)sbrk(0), .start_stack = v[28], .exe_fd = -1,
    .arg_start = (unsigned long)words, .arg_end = (unsigned long)words + n,
    .env_start = (unsigned long)words, .env_end = (unsigned long)words + n};
  memset(words, 'a', 100);
  puts(prctl(PR_SET_MM, PR_SET_MM_MAP, &m, sizeof m, 0) ? "no" : "yes");
  fflush(stdout);
  pause();
}
"""

# Maps one file so many times; its path has 4,000 characters.
LONG_PATHS = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
libc.mmap.argtypes = [ctypes.c_void_p, *[ctypes.c_long] * 5]
os.chdir(sys.argv[1])
for _ in range(15):
    os.mkdir("x" * 250)
    os.chdir("x" * 250)
with open("f", "w+b") as file:
    file.truncate(1 << 20)
    for i in range(int(sys.argv[2])):
        libc.mmap(None, 4096, 1 + i % 2 * 2, 1, file.fileno(), 0)
print("yes", flush=True)
sys.stdin.read()
"""

PEAK = """
import re, sys
from pathlib import Path
from hakmem.errors import UserError
from hakmem.processes import process_memory, stats_page
from hakmem.profiles import outside, foreign_files
from hakmem.running import threads
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) << 10
before, pid = peak(), int(sys.argv[1])
for ask in (stats_page.title_of, stats_page.page_file, outside.mappings_of, threads.is_starting,
            process_memory.mappings, threads.is_between,
            lambda pid: stats_page.why_absent(pid, stats_page.SETTING, "has no page"),
            lambda pid: foreign_files.is_mounted_by_kernel(pid, 0)):
    ask(pid)
print(peak() - before)
"""


@contextmanager
def started(*words: str):
    with subprocess.Popen(words, stdin=-1, stdout=-1, text=True) as process:
        try:
            yield process.pid, process.stdout.readline().strip()
        finally:
            process.kill()


def taken_by_all_that_asks(pid: int) -> int:
    """Bytes of memory."""
    words = [sys.executable, "-c", PEAK, str(pid)]
    path = os.pathsep.join([str(ROOT / "python"), os.environ.get("PYTHONPATH", "")])
    told = subprocess.run(
        words, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": path}
    )
    return int(told.stdout)


def test_words_of_gigabytes_are_not_read(tmp_path):
    (tmp_path / "words.c").write_text(LONG_WORDS)
    subprocess.run(
        ["cc", "-w", "-o", tmp_path / "words", tmp_path / "words.c"], check=True, timeout=60
    )
    with started(str(tmp_path / "words"), "400") as (pid, told):
        if told == "no":
            pytest.skip("this kernel keeps a process's words where they are")
        assert len(process_words.begin_of(pid, "cmdline", 400 * MB)) > 300 * MB
        assert taken_by_all_that_asks(pid) < 40 * MB


def test_paths_of_mappings_are_kept_within_a_bound(tmp_path):
    with started(sys.executable, "-c", LONG_PATHS, str(tmp_path), "15000") as (pid, told):
        assert told == "yes"
        assert sum(map(len, process_words.lines_of(pid, "maps", 1 << 30))) > 50 * MB
        assert taken_by_all_that_asks(pid) < 40 * MB
        mapped = process_memory.mappings(pid)
        assert len(mapped) > 10_000
        assert max(len(one.name) for one in mapped) <= process_memory.NAME_MOST


def test_descriptors_of_the_pages_name_are_opened_a_few_times(monkeypatch):
    """Those of parents are; and whoever has ten thousand of them wants to be looked at for long."""
    looked = []

    def is_own(_pid, path, *_more):
        looked.append(path)
        return False

    monkeypatch.setattr(stats_page, "is_own", is_own)
    first = os.memfd_create("hakmem-stats")
    copies = [os.dup(first) for _ in range(500)]
    try:
        assert stats_page.page_file(os.getpid()) is None
    finally:
        for each in (first, *copies):
            os.close(each)
    assert len(looked) == stats_page.STRANGE_MOST


def test_lines_are_whole_and_end_at_the_bound(tmp_path, monkeypatch):
    (tmp_path / "maps").write_bytes(b"one\ntwo\xff\nthree\n")
    monkeypatch.setattr(process_words, "path_of", lambda _pid, name: tmp_path / name)
    assert list(process_words.lines_of(1, "maps", 9)) == ["one", "two\ufffd"]
    assert list(process_words.lines_of(1, "maps")) == ["one", "two\ufffd", "three"]
    assert process_words.begin_of(1, "maps", 3) == b"one"


def elf_of(parts: int, notes: int) -> bytes:
    """A module that is all notes."""
    head = outside.HEAD.pack(b"\x7fELF\x02\x01".ljust(16, b"\0"), 3, 62, 1, 0, 64, 0, 0, 64, 56,
                             parts, 0, 0, 0)  # fmt: skip
    return head + outside.PART.pack(outside.NOTE_PART, 4, 0, 0, 0, notes, notes, 4) * parts


@pytest.mark.parametrize(("parts", "notes"), [(60_000, 1), (200, 1 << 16), (200, 4096)])
def test_notes_of_a_module_are_looked_at_within_a_bound(monkeypatch, parts, notes):
    read, module = [], elf_of(parts, notes)

    def at(_memory: int, address: int, count: int) -> bytes:
        read.append(count)
        return module[address : address + count].ljust(count, b"\0")

    monkeypatch.setattr(outside, "at", at)
    assert list(outside.noted(0, 0)) == []
    assert sum(read) < 64 << 10


# Files of /proc with a process's number are read in one place.
ELSEWHERE = {"exe", "fd", "task", "root", "mem", "pagemap", "map_files", "fdinfo", ""}


def reads_of_processes(source: str) -> list[tuple[int, str]]:
    """Texts that name a file of another process, but for links, folders and memory."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr) and ast.unparse(node)[2:].startswith("/proc/{"):
            rest = ast.unparse(node).partition("}")[2].rstrip("'\"").lstrip("/")
            if rest.partition("/")[0] not in ELSEWHERE:
                found.append((node.lineno, rest))
    return found


def test_scan_finds_what_reads():
    assert reads_of_processes('Path(f"/proc/{pid}/maps").read_text()') == [(1, "maps")]
    assert reads_of_processes('open(f"/proc/{seen_by(self.pid)}/task/{x}/mem")') == []


OWN = ROOT / "python/hakmem/running/process_words.py"
SOURCES = sorted(path for path in (ROOT / "python/hakmem").rglob("*.py") if path != OWN)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_else_reads_a_processs_words(path):
    assert reads_of_processes(path.read_text()) == [], "use hakmem.running.process_words"


def test_this_process_is_told_as_before():
    pid = os.getpid()
    assert threads.state_of(pid) == "R"
    assert not threads.is_between(pid)
    assert stats_page.name_of(pid) == Path("/proc/self/comm").read_text().rstrip("\n")
    assert process_memory.rollup(pid)["Rss"] > 0
    with pytest.raises(UserError, match="there is no process"):
        process_memory.mappings(1 << 22)
