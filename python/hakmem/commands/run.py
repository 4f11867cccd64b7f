"""`hakmem run`: any program under hakmem, started as `env` would start it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from hakmem.allocators import peers
from hakmem.allocators.peers import find, how_to_get
from hakmem.allocators.settings import PREFIX, check_library, is_hakmem, own_settings
from hakmem.destinations import WORD, require_apart
from hakmem.documents import write_json
from hakmem.errors import NOT_STARTED, REFUSED, WRONG_USE, UserError, warn
from hakmem.options import (
    PROGRAM_LAST,
    completing,
    json_option,
    option,
    set_option,
    stdin_option,
)
from hakmem.running import programs
from hakmem.running.in_place import become
from hakmem.running.proof import counted, idle_words
from hakmem.running.witness import Ended, run_watched
from hakmem.streams import report_stream

PROFILES = ("balanced", "speed", "lean", "hardened")
PROFILE = f"{PREFIX}PROFILE"


@click.command(context_settings=PROGRAM_LAST)
@option(
    "--profile",
    f"HAKMEM_PROFILE for the program: {', '.join(PROFILES)}.",
    kind=WORD,
    metavar="PROFILE",
    shell_complete=completing(lambda: PROFILES),
)
@set_option()
@click.option("--proof", is_flag=True, help="Say on stderr at the end what hakmem served, too.")
@click.option(
    "--strict",
    is_flag=True,
    help=f"End with status {REFUSED} when hakmem cannot serve the program, or has not.",
)
@stdin_option()
@json_option()
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED)
def run(
    profile: str | None,
    settings: tuple[str, ...],
    proof: bool,
    strict: bool,
    stdin: Path | None,
    json_path: Path | None,
    program: tuple[str, ...],
) -> None:
    """Run PROGRAM under hakmem: hakmem run [OPTIONS] -- PROGRAM [ARGUMENT]...

    The program takes the place of this command: its process, terminal, signals and exit status are
    the program's. With --proof, --strict or --json the command stays, and ends with the program's
    status (128 + n after signal n); commands that take a PID take this one's too.

    hakmem goes behind what LD_PRELOAD already holds. When it cannot serve the program, or its
    counter shows that it has not, one line on stderr says why.
    """
    require_apart(json_path, "--json")
    chosen, library = chosen_settings(profile, settings)
    programs.require_program(program)
    found = programs.examine(program)
    require_build(found, chosen, "--profile")
    served_by, environment = library, {**os.environ, **chosen, **preloading(found, library)}
    if found.hakmem is not None:
        served_by = found.hakmem.resolve()
    elif found.obstacle:
        warn("run", f"it cannot be served: {found.obstacle}")
        if strict:
            raise SystemExit(REFUSED)
    name_interface(found, library)
    look = not found.obstacle or found.holds_hakmem
    if not (proof or strict or json_path is not None):
        become(
            program,
            environment,
            served_by if look else None,
            lambda ended: report(ended, found, proof, chosen),
            stdin,
        )
    if proof:
        report_stream()
    ended = run_watched(program, environment, served_by, look, stdin)
    if look:
        report(ended, found, proof, chosen)
    elif proof:
        warn("run", "not served")
    write_json(json_path, "run", document(program, chosen, ended, found))
    raise SystemExit(REFUSED if strict and not ended.served else ended.exit_status)


def name_interface(found: programs.Examined, library: Path) -> None:
    """A jemalloc that does not serve the program would answer what it asks by jemalloc's names."""
    if found.asks_jemalloc and found.takes_preload and not library.name.startswith("libhakmem-je"):
        warn(
            "run",
            f"{found.path} calls jemalloc's {found.asks_jemalloc}, which {library.name} does not "
            f"answer: {programs.LIBRARY_WITH_THEM} does (hakmem --lib je prints its path)",
        )


def document(
    program: Sequence[str], chosen: Mapping[str, str], ended: Ended, found: programs.Examined
) -> dict:
    """What is known of the run; `served` is hakmem's counter, null where it was not to be seen."""
    return {
        "program": list(program),
        "settings": dict(chosen),
        "served": ended.served,
        "why": "" if ended.served else ended.why_unknown or reason(ended, found, chosen),
        "exit_status": ended.exit_status,
    }


def library_of(profile: str | None, library: Path) -> Path:
    """The library that has the profile: the hardened build is one of its own, beside the other."""
    if profile != "hardened":
        return library
    hardened = library.with_name("libhakmem-hardened.so")
    if not hardened.is_file():
        raise UserError(f"{hardened} is missing: {how_to_get()}", REFUSED)
    return hardened


def chosen_settings(
    profile: str | None, texts: Sequence[str], with_environment: bool = False
) -> tuple[dict[str, str], Path]:
    """The settings asked for, and the library that has taken them."""
    chosen = own_settings("--set", texts)
    by_option = {"--set": dict(chosen)}
    if profile is not None:
        if PROFILE in chosen:
            raise UserError(f"--set: {PROFILE} is given twice: --profile sets it", WRONG_USE)
        chosen = {PROFILE: profile, **chosen}
        by_option["--profile"] = {PROFILE: profile}
    library = library_of(chosen.get(PROFILE), peers.require_usable(find("hakmem")).library)
    if is_hakmem(library):
        check_library(library, by_option, with_environment)
    elif chosen:
        told = f"{next(iter(chosen))} means nothing to {library}, which is no hakmem"
        raise UserError(f"{told}; nothing was started", WRONG_USE)
    return chosen, library


def require_build(found: programs.Examined, chosen: Mapping[str, str], option: str) -> None:
    """The program's own hakmem takes the settings; the profile of another library does not fit."""
    is_hardened = found.hakmem is not None and "hardened" in found.hakmem.name
    if chosen.get(PROFILE) == "hardened" and found.hakmem is not None and not is_hardened:
        why = found.obstacle or found.remark
        raise UserError(f"{option} hardened: {why}", WRONG_USE)


def preloading(found: programs.Examined, library: Path) -> dict[str, str]:
    """LD_PRELOAD of a program: with the library behind what is there already, and at most one
    hakmem in the process: the program's own where it has one, else this library."""
    if found.keeps_malloc:
        return {}
    path, there = str(library), os.environ.get("LD_PRELOAD", "").replace(":", " ").split()
    kept = [each for each in there if each == path or not programs.is_hakmem(Path(each))]
    if any(mark in path for mark in ": ") and found.takes_preload:
        raise UserError(f"LD_PRELOAD cannot hold a path with a blank or colon: {path}", REFUSED)
    if found.takes_preload and path not in kept:
        kept.append(path)
    elif not found.takes_preload:
        kept = [each for each in kept if each != path]
    return {"LD_PRELOAD": ":".join(kept)} if kept or there else {}


def report(ended: Ended, found: programs.Examined, proof: bool, chosen: Mapping[str, str]) -> None:
    """One line when hakmem has not served the program, or when asked for it."""
    if ended.served:
        if proof:
            warn("run", f"served {ended.program}: {counted(ended.served)} when it was looked at")
    elif ended.served is None and ended.why_unknown:
        warn("run", f"whether hakmem served it could not be seen: {ended.why_unknown}")
    elif ended.exit_status != NOT_STARTED:
        warn("run", f"NOT SERVED: {reason(ended, found, chosen)}")


def reason(ended: Ended, found: programs.Examined, chosen: Mapping[str, str]) -> str:
    """What most likely kept hakmem out, told by what became of the program."""
    last = programs.examine_binary(Path(ended.program)) if ended.program else found
    if last.obstacle:
        return last.obstacle
    if ended.served is None:
        return (
            "the library was not in the program: LD_PRELOAD was dropped on the way, or the "
            "loader refused it"
        )
    there = os.environ.get("LD_PRELOAD", "")
    if there:
        return f"it was loaded and not used: LD_PRELOAD held {there} before it"
    return f"it was loaded and served nothing: {idle_words(chosen)}"
