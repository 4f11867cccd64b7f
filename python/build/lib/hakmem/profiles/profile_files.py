"""The files that are made of a heap profile: one for each format, beside each other."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from hakmem.documents import HTML, JSON, kind, require_kind, write_bytes
from hakmem.errors import UserError
from hakmem.extras import INSTALL, PROTOBUF, is_there, require
from hakmem.profiles import profile_html
from hakmem.profiles.profile_sites import MEASURES, Change, Named, Site

ENDINGS = {
    "html": ".html",
    "pprof": ".pb.gz",
    "folded": ".folded",
    "dhat": ".dhat.json",
    "json": ".json",
}
DEFAULT_FORMATS = "html,pprof"
OF_CHANGES = ("html", "pprof", "folded")
KINDS = {
    "html": HTML,
    "pprof": kind("pprof file", rb"\x1f\x8b\x08\x08.{6}hakmem\0"),
    # Stacks and their bytes, of a difference before and after; the last line may be cut.
    "folded": kind("file of folded stacks", rb"([^\n]+ \d+\n)+([^\n]*\Z)"),
    "dhat": JSON,
    "json": kind("heap profile", rb'\{\s*"hakmem_heap_profile"'),
}


@dataclass(frozen=True)
class Wanted:
    """Which formats, and where: a folder, or a path that the endings are put behind."""

    formats: tuple[str, ...]
    output: Path | None

    def prefix(self, name: str, number: int | None = None) -> Path:
        path = Path(name) if self.output is None else self.output
        if self.output is not None and path.is_dir():
            path = path / name
        return path if number is None else path.with_name(f"{path.name}.{number}")

    def files(self, prefix: Path) -> dict[str, Path]:
        """By format."""
        return {name: prefix.with_name(prefix.name + ENDINGS[name]) for name in self.formats}

    def known(self, name: str = "") -> dict[str, Path]:
        """Those whose names are known before there is a profile, or with the `name` of one."""
        if not name and (self.output is None or self.output.is_dir()):
            return {}
        return self.files(self.prefix(name))


def parse_formats(text: str, allowed: Sequence[str] = tuple(ENDINGS)) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    for name in found:
        if name not in allowed:
            raise UserError(f"--format: '{name}' is not one of {', '.join(allowed)}", 2)
    if not found:
        raise UserError(f"--format: name one or more of {', '.join(allowed)}", 2)
    return found


def formats_there(formats: tuple[str, ...], asked: bool) -> tuple[tuple[str, ...], str]:
    """Those that can be written, and what is to be said of the others; `asked` for, all must be."""
    if "pprof" not in formats or is_there(PROTOBUF):
        return formats, ""
    if asked:
        require("--format pprof", PROTOBUF)
    return tuple(name for name in formats if name != "pprof"), f"no pprof file without {INSTALL}"


def pprof() -> ModuleType:
    # Needs protobuf, which is an extra.
    from hakmem.profiles import profile_pprof

    return profile_pprof


def write(wanted: Wanted, prefix: Path, makers: Mapping[str, Callable[[], bytes]]) -> list[Path]:
    found = wanted.files(prefix)
    for name, path in found.items():
        require_kind(path, KINDS[name])
    for name, path in found.items():
        write_bytes(path, makers[name]())
    return list(found.values())


def write_profile(
    named: Named, wanted: Wanted, prefix: Path, order: str, leaks: bool
) -> list[Path]:
    makers = {
        "html": lambda: profile_html.of_profile(named, order, leaks).encode(),
        "pprof": lambda: pprof().of_profile(named),
        "folded": lambda: folded(named.sites, order).encode(),
        "dhat": lambda: dhat(named).encode(),
        "json": lambda: named.profile.text,
    }
    return write(wanted, prefix, makers)


def write_changes(
    before: Named, after: Named, changes: Sequence[Change], wanted: Wanted, prefix: Path
) -> list[Path]:
    makers = {
        "html": lambda: profile_html.of_changes(before, after, changes).encode(),
        "pprof": lambda: pprof().of_changes(before, after, changes),
        "folded": lambda: folded_changes(changes).encode(),
    }
    return write(wanted, prefix, makers)


def folded_stack(frames: Sequence) -> str:
    """The outermost function first; a semicolon or a line's end in a name would part it."""
    return ";".join(
        " ".join(frame.function.replace(";", ":").split()) for frame in reversed(frames)
    )


def folded(sites: Sequence[Site], order: str = "live") -> str:
    """Bytes, as flamegraph.pl, inferno and Speedscope read them."""
    sums: dict[str, int] = {}
    for site in sites:
        if count := MEASURES[order](site.figures):
            key = folded_stack(site.frames)
            sums[key] = sums.get(key, 0) + count
    return "".join(f"{key} {count}\n" for key, count in sorted(sums.items()))


def folded_changes(changes: Sequence[Change]) -> str:
    """Live bytes before and after, as difffolded.pl writes them for flamegraph.pl."""
    sums: dict[str, list[int]] = {}
    for one in changes:
        pair = sums.setdefault(folded_stack(one.frames), [0, 0])
        pair[0] += one.before.bytes
        pair[1] += one.after.bytes
    return "".join(f"{key} {a} {b}\n" for key, (a, b) in sorted(sums.items()))


def dhat(named: Named) -> str:
    """For Valgrind's dh_view.html. Lifetimes are not known of each block, so the file says that it
    has none; what was live at the peak and at the end is in it for other readers."""
    table: dict[str, int] = {"[root]": 0}
    points = []
    for site in named.sites:
        figures = site.figures
        points.append({
            "tb": figures.total.bytes, "tbk": figures.total.count,
            "gb": figures.peak_bytes, "gbk": figures.peak_count,
            "eb": figures.live.bytes, "ebk": figures.live.count,
            "fs": [table.setdefault(str(frame), len(table)) for frame in site.frames],
        })  # fmt: skip
    profile = named.profile
    document = {
        "made_by": "hakmem profile",
        "dhatFileVersion": 2,
        "mode": "heap",
        "verb": "Allocated",
        "bklt": False,
        "bkacc": False,
        "tu": "ms",
        "Mtu": "ks",
        "cmd": f"{profile.program} ({profile.known})",
        "pid": profile.pid,
        "te": profile.milliseconds,
        "tg": profile.peak_ms,
        "pps": points,
        "ftbl": list(table),
    }
    return json.dumps(document, indent=1) + "\n"
