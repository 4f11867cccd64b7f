"""`hakmem run`: any program under hakmem, started as `env` would start it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from hakmem.allocators.peers import find, how_to_get
from hakmem.documents import write_json
from hakmem.errors import UserError
from hakmem.options import json_option, split_pair, stdin_option
from hakmem.running import programs
from hakmem.running.witness import Ended, run_watched

PREFIX = "HAKMEM_"
PROFILES = ("balanced", "speed", "lean", "hardened")
# As env, nice and nohup: 125 for a failure of the command itself, 126 for a program that
# cannot be started, 127 for none of that name.
REFUSED, NOT_STARTED, NOT_FOUND = 125, 126, 127


def complete_profile(_context: object, _parameter: object, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in PROFILES if name.startswith(incomplete)]


@click.command(
    short_help="Run PROGRAM under hakmem, with proof of service.",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.option(
    "--profile",
    metavar="PROFILE",
    shell_complete=complete_profile,
    help=f"HAKMEM_PROFILE for the program: {', '.join(PROFILES)}.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="Set an option of hakmem (docs/options.md); HAKMEM_ before the name may be left out.",
)
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

    The program has this terminal, its files, its signals, and its exit status becomes that of this
    command (128 + n after signal n). hakmem goes behind what LD_PRELOAD already holds. When it
    cannot serve the program, or its counter shows that it has not, one line on stderr says why.
    """
    chosen = chosen_settings(profile, settings)
    library = library_of(profile, found_library())
    reject_unknown(chosen, library)
    found = programs.examine(program)
    if found.path is None:
        raise UserError(f"there is no program '{program[0]}'", NOT_FOUND)
    if found.obstacle:
        warn(f"hakmem will not serve it: {found.obstacle}")
        if strict:
            raise SystemExit(REFUSED)
    environment = {**os.environ, **chosen, "LD_PRELOAD": appended(library)}
    ended = run_watched(program, environment, library, not found.obstacle, stdin)
    if not found.obstacle:
        report(ended, found, proof)
    elif proof:
        warn("not served")
    if json_path is not None:
        write_json(json_path, "run", document(program, chosen, ended, found))
    raise SystemExit(REFUSED if strict and not ended.served else ended.exit_status)


def document(
    program: Sequence[str], chosen: Mapping[str, str], ended: Ended, found: programs.Examined
) -> dict:
    """What is known of the run; `served` is hakmem's counter, null where it was not to be seen."""
    return {
        "program": list(program),
        "settings": dict(chosen),
        "served": ended.served,
        "why": "" if ended.served else ended.why_unknown or reason(ended, found),
        "exit_status": ended.exit_status,
    }


def found_library() -> Path:
    hakmem = find("hakmem")
    if not hakmem.usable or hakmem.library is None:
        raise UserError(f"{hakmem.problem}: {how_to_get()}", REFUSED)
    return hakmem.library


def library_of(profile: str | None, library: Path) -> Path:
    """The library that has the profile: the hardened build is one of its own, beside the other."""
    if profile != "hardened":
        return library
    hardened = library.with_name("libhakmem-hardened.so")
    if not hardened.is_file():
        raise UserError(f"{hardened} is missing: {how_to_get()}", REFUSED)
    return hardened


def chosen_settings(profile: str | None, settings: Sequence[str]) -> dict[str, str]:
    chosen = {f"{PREFIX}PROFILE": profile} if profile is not None else {}
    for text in settings:
        name, value = split_pair("--set", text)
        full = name if name.startswith(PREFIX) else PREFIX + name
        if full in chosen:
            raise UserError(f"--set: {full} is given twice", 2)
        chosen[full] = value
    return chosen


def reject_unknown(chosen: Mapping[str, str], library: Path) -> None:
    """Asks the library itself: it complains of what it does not know, naming the option."""
    if not chosen:
        return
    clean = {n: v for n, v in os.environ.items() if not n.startswith(PREFIX)}
    said = subprocess.run(
        ["/bin/true"],
        env={**clean, **chosen, "LD_PRELOAD": str(library)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    ).stderr
    for line in said.splitlines():
        for name in chosen:
            if line.startswith((f"hakmem: {name} is ", f"hakmem: {name}={chosen[name]} is ")):
                raise UserError(f"{line.removeprefix('hakmem: ')}; nothing was started", 2)


def appended(library: Path) -> str:
    """LD_PRELOAD with the library behind what is there already."""
    path = str(library)
    if any(mark in path for mark in ": "):
        raise UserError(f"LD_PRELOAD cannot hold a path with a blank or colon: {path}", REFUSED)
    there = os.environ.get("LD_PRELOAD", "")
    if path in there.replace(":", " ").split():
        return there
    return f"{there}:{path}" if there else path


def report(ended: Ended, found: programs.Examined, proof: bool) -> None:
    """One line when hakmem has not served the program, or when asked for it."""
    if ended.served:
        if proof:
            warn(f"served {ended.program}: alloc={ended.served} when it was looked at")
    elif ended.served is None and ended.why_unknown:
        warn(f"whether hakmem served it could not be seen: {ended.why_unknown}")
    elif ended.exit_status != NOT_STARTED:
        warn(f"NOT SERVED: {reason(ended, found)}")


def reason(ended: Ended, found: programs.Examined) -> str:
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
    return "it was loaded and not used: the program allocates nothing, or by a malloc of its own"


def warn(text: str) -> None:
    print(f"hakmem run: {text}", file=sys.stderr, flush=True)
