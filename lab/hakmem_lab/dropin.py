"""Others' tests, Debian's programs and figures over our libraries, beside Debian's own ones.

tests/dropin has a script for each part, and what they need. Sources come from the registries into
the cache folder. Tests are linked with Debian's library and find ours by LD_LIBRARY_PATH; only what
passes on Debian's is asked of ours.
"""

import fcntl
import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import zip_longest
from pathlib import Path

from hakmem import files
from hakmem.allocators import cache
from hakmem.allocators.peers import DEBIAN_LIBRARIES, build_folder, repository_root
from hakmem.documents import write_text
from hakmem.errors import REFUSED, UserError
from hakmem.plain_text import last_lines, with_last_words

PASS = "pass"
LIMIT_S = 1800
JEMALLOC, TCMALLOC, MAIN = "libjemalloc.so.2", "libtcmalloc_minimal.so.4", "libhakmem.so"
SOURCES = Path("/etc/apt/sources.list.d/debian.sources")
# Where servers are.
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/bin:/bin"
ASKED = re.compile(r"^(?:mallctl|mib|uses) (\S+)", re.MULTILINE)
ANSWERED = re.compile(r"^(?:mallctl|mib) (\S+) -> (\d+)", re.MULTILINE)


@dataclass
class Row:
    """One test: how it ends on Debian's library and on ours, and why ours may differ."""

    part: str
    name: str
    theirs: str
    ours: str
    because: str = ""

    @property
    def counts(self) -> bool:
        return self.theirs == PASS

    @property
    def fails(self) -> bool:
        return self.counts and self.ours != PASS


@dataclass
class Shop:
    """Where it is done, and what was told of it beside the rows."""

    folder: Path = field(default_factory=lambda: cache.cache_folder() / "dropin")
    own: Path = field(default_factory=lambda: repository_root() / "tests" / "dropin")
    build: Path = field(default_factory=build_folder)
    notes: dict[str, str] = field(default_factory=dict)
    tick: Callable[[str], None] = lambda _: None

    @property
    def jemalloc(self) -> Path:
        """The folder where a program finds our libjemalloc.so.2."""
        return self.build / "je"

    @contextmanager
    def held(self) -> Iterator[None]:
        """Refuses while another process works in the folder."""
        files.make_folder(self.folder)
        if problem := files.why_not_ours(self.folder):
            raise UserError(problem, REFUSED)
        with files.open_to_append(self.folder / "lock") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(f"another process works in {self.folder}", REFUSED) from None
            yield

    def work(self, name: str) -> Path:
        """An empty folder."""
        folder = self.folder / name
        shutil.rmtree(folder, ignore_errors=True)
        files.make_folder(folder)
        return folder

    def source(self, package: str) -> Path:
        """The unpacked sources of a Debian package, kept in the cache."""
        kept = self.folder / "sources" / package
        if not kept.is_dir():
            if not SOURCES.is_file():
                raise UserError(f"{SOURCES} is missing: it names the packages' sources", REFUSED)
            lists = self.folder / "lists"
            files.make_folder(lists / "partial")
            named = self.folder / "deb-src.sources"
            write_text(named, re.sub(r"(?m)^Types: .*", "Types: deb-src", SOURCES.read_text()))
            places = ("SourceParts=-", f"SourceList={named}")
            apt = ["apt-get", *(f"-oDir::Etc::{place}" for place in places)]
            apt.append(f"-oDir::State::Lists={lists}")
            must([*apt, "update"], self.folder)
            fetched = self.work(f"sources/{package}.new")
            must([*apt, "source", package], fetched)
            files.move(fetched, kept)
        return next(path for path in sorted(kept.iterdir()) if path.is_dir())


def run(command: Sequence[str | Path], folder: Path, **variables: object):
    """A finished process with stdout and stderr as text; one that takes too long ends as 124."""
    words = ["timeout", str(LIMIT_S), *map(str, command)]
    given = os.environ | {name: str(value) for name, value in variables.items()}
    how = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "errors": "replace"}
    return subprocess.run(words, cwd=folder, env=given, check=False, **how)


def must(command: Sequence[str | Path], folder: Path, **variables: object) -> str:
    """The output of a step that has to succeed."""
    ran = run(command, folder, **variables)
    if ran.returncode:
        words = f"{' '.join(map(str, command))[:200]} ends with {ran.returncode}"
        raise UserError(with_last_words(words, ran.stderr or ran.stdout))
    return ran.stdout


def scripted(part: str, package: str, ours: Callable[[Shop], Path]) -> Callable:
    """A part whose script builds tests, and runs them on the libraries of one folder."""

    def rows(shop: Shop) -> Iterator[Row]:
        shop.tick(f"{part}: sources")
        source = shop.source(package) if package else shop.own
        work, script = shop.work(part), shop.own / f"{part}.sh"
        shop.tick(f"{part}: build")
        said = must(["sh", script, "build", source, work, DEBIAN_LIBRARIES], work)
        shop.notes |= (
            dict.fromkeys([part], note[0]) if (note := re.findall("NOTE (.*)", said)) else {}
        )
        sides = []
        for libraries in (DEBIAN_LIBRARIES, ours(shop)):
            shop.tick(f"{part}: {libraries}")
            sides.append(results(must(["sh", script, "run", source, work, libraries], work)))
        theirs, own = sides
        for name, word in theirs.items():
            yield Row(part, name, word, own.get(name, "no result"))

    return rows


def results(said: str) -> dict[str, str]:
    """Of lines "RESULT NAME: WORD: WHY"; a test that is run twice must pass each time."""
    found: dict[str, str] = {}
    for name, word, why in re.findall(r"^RESULT (.+?): (.+?): ?(.*)$", said, re.MULTILINE):
        if found.get(name, PASS) == PASS:
            found[name] = f"{word}: {why}" if why else word
    return found


def programs(shop: Shop) -> Iterator[Row]:
    """Scripts that run Debian's programs: equal output, and the same answers to their mallctl."""
    shim = shop.work("programs") / "trace.so"
    must(["gcc", "-O1", "-shared", "-fPIC", shop.own / "trace.c", "-o", shim], shim.parent)
    for place, script in enumerate(sorted((shop.own / "programs").glob("*.sh"))):
        shop.tick(script.stem)
        needs = script.read_text().partition("\n")[0].lstrip("# ").split(", ")
        if lacking := [one for one in needs if not shutil.which(one.split()[0], path=PATH)]:
            shop.notes[script.stem] = f"not run: {lacking[0]} (program, package) is not installed"
            continue
        given = {"REDIS": redis_with_defrag(shop)} if script.stem == "redis-defrag" else {}
        sides = ((DEBIAN_LIBRARIES, shim), (shop.jemalloc, ""), (shop.jemalloc, shim))
        ran, asked = [], []
        for turn, (libraries, preload) in enumerate(sides):
            folder = shop.work(f"programs/{script.stem}-{turn}")
            # A server may run as another user; of others' files each has its own.
            files.set_mode(folder, 0o1777)
            trace, port = folder / "trace", 20000 + 100 * place + 10 * turn
            given |= {"LD_LIBRARY_PATH": libraries, "LD_PRELOAD": preload, "DROPIN_TRACE": trace}
            ran.append(run(["sh", script], folder, PATH=PATH, PORT=port, **given))
            asked.append(trace.read_text(errors="replace") if trace.exists() else "")
        status = ran[0].returncode
        theirs = with_last_words(f"status {status}", ran[0].stderr) if status else PASS
        problem = difference(ran) or served(asked[2], shop.jemalloc) or refused(asked)
        yield Row("programs", script.stem, theirs, problem or PASS)
        names = dict.fromkeys(ASKED.findall(asked[2]))
        shop.notes[f"{script.stem} asks"] = ", ".join(names) or "malloc alone"


def difference(ran: Sequence[subprocess.CompletedProcess]) -> str:
    """The first line of output that is another one than on Debian's library."""
    for one in ran[1:]:
        if (one.returncode, one.stdout) != (ran[0].returncode, ran[0].stdout):
            pairs = zip_longest(ran[0].stdout.splitlines(), one.stdout.splitlines())
            line = next((f"{own!r}, not {theirs!r}" for theirs, own in pairs if theirs != own), "")
            return f"status {one.returncode}: {line or 'no line'}: {last_lines(one.stderr, 1)}"
    return ""


def served(trace: str, folder: Path) -> str:
    """Whose mallctl the processes have, by trace.c: it must be the library of our folder."""
    found = {Path(path).resolve() for path in re.findall("^served by (.*)$", trace, re.MULTILINE)}
    others = found - {(folder / JEMALLOC).resolve()}
    return f"served by {', '.join(map(str, others)) or 'nobody'}" if others or not found else ""


def refused(asked: Sequence[str]) -> str:
    """Names that ours answers with another error than Debian's."""
    theirs, ours = dict(ANSWERED.findall(asked[0])), dict(ANSWERED.findall(asked[2]))
    other = [f"{name} -> {no}" for name, no in ours.items() if theirs.get(name, no) != no]
    return f"answers otherwise: {', '.join(other)}" if other else ""


def redis_with_defrag(shop: Shop) -> Path:
    """Redis of Debian's sources with active defragmentation, which Debian does not compile in."""
    source = shop.source("redis")
    program, hint = source / "src/redis-server", source / "hint.o"
    if not program.exists():
        must(["gcc", "-O2", "-c", shop.own / "defrag_hint.c", "-o", hint], source)
        with_hint = ["REDIS_CFLAGS=-DJEMALLOC_FRAG_HINT", f"REDIS_LDFLAGS={hint}"]
        how = ["MALLOC=jemalloc", "USE_SYSTEM_JEMALLOC=yes", "USE_SYSTEMD=no", "OPTIMIZATION=-O1"]
        must(["make", "-j2", "-C", "src", "redis-server", *how, *with_hint], source)
    return program


def figures(shop: Shop) -> Iterator[Row]:
    """stats.* against an own count and smaps, within 1 %; see figures.c."""
    program = shop.work("figures") / "figures"
    source = (shop.own / "figures.c", DEBIAN_LIBRARIES / JEMALLOC)
    must(["gcc", "-O1", "-fno-builtin", *source, "-o", program], program.parent)
    said = must([program], program.parent, LD_LIBRARY_PATH=shop.jemalloc)
    for name, word in judged(said).items():
        yield Row("figures", name, PASS, word)


def judged(said: str) -> dict[str, str]:
    """Of lines "PHASE FIGURE SAID TRUE"; among sparse pages the true active is a lower bound."""
    found = {}
    for phase, name, *values in re.findall(r"^(\w+) (\S+) (-?\d+) (\d+)$", said, re.MULTILINE):
        told, true = map(int, values)
        off = (told - true) / true * 100
        fits = off >= -1 and (off <= 1 or (phase, name) == ("sparse", "active"))
        found[f"{phase} {name}"] = PASS if fits else f"{told:,} for {true:,}: {off:+.2f} %"
    return found


PARTS = {
    "jemalloc": scripted("jemalloc", "jemalloc", lambda shop: shop.jemalloc),
    "tikv": scripted("tikv", "", lambda shop: shop.jemalloc),
    "gperftools": scripted("gperftools", "google-perftools", lambda shop: shop.build),
    "programs": programs,
    "figures": figures,
}


def reasons(own: Path) -> list[dict[str, str]]:
    return tomllib.loads((own / "reasons.toml").read_text())["reason"]


def explain(rows: Sequence[Row], known: Sequence[Mapping[str, str]]) -> None:
    """Each failure's reason: the first entry whose test fits its name and whose words its own."""
    for row in (one for one in rows if one.fails):
        fitting = (one for one in known if fnmatchcase(f"{row.part} {row.name}", one["test"]))
        fits = (one["because"] for one in fitting if re.fullmatch(one["says"], row.ours))
        row.because = next(fits, "")
