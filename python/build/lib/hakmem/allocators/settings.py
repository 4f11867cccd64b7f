"""Settings of allocators, given by an option or in the environment: one parser for all commands.

Invariant: no program is started with a setting that the library under it refuses. The library
itself is asked, because its table of options is the only one.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path

from hakmem.allocators.peers import Allocator, find
from hakmem.elf_files import elf_file
from hakmem.environment import SETTING_PREFIXES
from hakmem.errors import WRONG_USE, UserError
from hakmem.plain_text import printable

PREFIX = "HAKMEM_"
PRELOAD = "LD_PRELOAD"
# A library that has this function is hakmem; any other one is not asked.
OWN_FUNCTION = "hakmem_option_set"
LISTED = re.compile(r"^hakmem: (HAKMEM_\w+)=", re.MULTILINE)
VALUE = re.compile(r"^hakmem: (HAKMEM_\w+)=(.*)$", re.MULTILINE)
VERBOSE = "HAKMEM_VERBOSE"
# It reads its settings at its start. SIGKILL leaves no time for the files that some make at exit.
TRIAL = ("/bin/sh", "-c", "kill -KILL $$")
# What the library does instead, where it is not refused.
INSTEAD = re.compile(r": (ignored|using [^:]*|this library behaves as \w+)$")
NOT_KNOWN = "is not an option"
RETIRED = "is retired"
# The library shortens longer names and values in what it says.
SHOWN_BYTES = 64


def split_pair(option: str, text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    lacking = "no =" if not separator else "no name" if not name else "" if value else "no value"
    if lacking:
        raise UserError(f"{option}: '{text}' is not NAME=VALUE: it has {lacking}", WRONG_USE)
    return name, value


def without_repeats(option: str, given: Iterable[tuple[str, str]]) -> dict[str, str]:
    chosen: dict[str, str] = {}
    for name, value in given:
        if name in chosen:
            raise UserError(f"{option}: {name} is given twice", WRONG_USE)
        chosen[name] = value
    return chosen


def own_settings(option: str, texts: Sequence[str]) -> dict[str, str]:
    """Of an option that takes hakmem's settings alone: HAKMEM_ before a name may be left out."""
    pairs = (split_pair(option, text) for text in texts)
    return without_repeats(option, ((full_name(name), value) for name, value in pairs))


def full_name(name: str) -> str:
    return PREFIX + (name[len(PREFIX) :] if name.upper().startswith(PREFIX) else name)


def settings_for(
    option: str, texts: Sequence[str], chosen: Sequence[Allocator], notes: list[str]
) -> dict[str, str]:
    """Of an option that takes any variable, for programs under `chosen`; checked.

    A name with no allocator's prefix is an option of hakmem if the library knows it so, or did in
    an earlier version, which a note says; else it is the program's own.
    """
    given = [split_pair(option, text) for text in texts]
    if any(name == PRELOAD for name, _ in given):
        told = f"{option}: {PRELOAD} is set by this command; a library is given by --lib or --b-lib"
        raise UserError(told, WRONG_USE)
    libraries = hakmem_libraries(chosen)
    pairs = []
    for name, value in given:
        # A note is one line.
        meant, shown = name, printable(f"{name}={value}")
        if name.startswith(SETTING_PREFIXES):
            pass
        elif not libraries:
            if is_or_was_option(full_name(name), value, hakmem_libraries([find("hakmem")])):
                names = ", ".join(a.name for a in chosen)
                told = f"a variable of the program: {full_name(name)} means nothing to {names}"
                notes.append(f"{option}: {shown} is {told}")
        else:
            full = full_name(name)
            if is_or_was_option(full, value, libraries):
                notes.append(f"{option}: {shown} is taken as {printable(full)}={printable(value)}")
                meant = full
            else:
                near = near_options(full, known_options(libraries), 0.8)
                notes.append(
                    f"{option}: {shown} is a variable of the program: "
                    f"hakmem has no {printable(full)}" + (f" (near: {near[0]})" if near else "")
                )
        pairs.append((meant, value))
    settings = without_repeats(option, pairs)
    own = [name for name in settings if name.startswith(PREFIX)]
    if own and not libraries:
        names = ", ".join(a.name for a in chosen)
        told = f"{option}: {own[0]} means nothing to {names}; nothing was started"
        raise UserError(told, WRONG_USE)
    check(chosen, {option: settings})
    return settings


def check(chosen: Sequence[Allocator], asked: Mapping[str, Mapping[str, str]]) -> None:
    """Refuses what hakmem among `chosen` does not take: settings by option, then environment's."""
    for library in hakmem_libraries(chosen):
        check_library(library, asked)


def check_library(
    library: Path, asked: Mapping[str, Mapping[str, str]], with_environment: bool = True
) -> None:
    """The same for one library that is hakmem."""
    origins = {name: option for option, settings in asked.items() for name in settings}
    settings = {name: value for given in asked.values() for name, value in given.items()}
    if with_environment:
        inherited = {n: v for n, v in os.environ.items() if n.startswith(PREFIX)}
        settings = inherited | settings
    own = {name: value for name, value in settings.items() if name.startswith(PREFIX)}
    for name, sentence in complaints(library, own):
        value = own[name]
        said = INSTEAD.sub("", sentence)
        if NOT_KNOWN in said:
            near = near_options(name, known_options([library]), 0.6)
            hint = f"near: {', '.join(near)}" if near else "HAKMEM_VERBOSE=1 prints all there are"
            said = f"{shortened(name)}={shortened(value)}: {said} ({hint})"
        raise UserError(
            f"{origins.get(name, 'environment')}: {said}; nothing was started", WRONG_USE
        )


def overridden(own: Mapping[str, str]) -> list[str]:
    """Of the environment, what a command does not use as it sets that itself."""
    return [
        f"environment: {name}={os.environ[name]} is not used: this command sets {name}={value}"
        for name, value in own.items()
        if os.environ.get(name, value) != value
    ]


def complaints(library: Path, own: Mapping[str, str]) -> list[tuple[str, str]]:
    """What the library says of settings at its start: names, each with the sentence."""
    if not own:
        return []
    said, found = "\n" + said_at_start(library, own), []
    for name, value in own.items():
        # With HAKMEM_VERBOSE it says NAME=VALUE of each, with nothing behind.
        shown, pair = shortened(name), f"{name}={shortened(value)}"
        starts = (f"{shown} ", f"{shown}: ", f"{pair} ", f"{pair}: ")
        # Not line by line: a newline may be part of the setting.
        begins = "|".join(map(re.escape, starts))
        found += [(name, text) for text in re.findall(f"\nhakmem: ((?:{begins}).*)", said)]
    return found


def shortened(text: str) -> str:
    """As src/config shows it: whole, or its first bytes up to the end of a character."""
    data, kept = os.fsencode(text), SHOWN_BYTES
    if len(data) <= kept:
        return text
    while kept and data[kept] & 0xC0 == 0x80:
        kept -= 1
    return os.fsdecode(data[:kept]) + "…"


def said_at_start(library: Path, settings: Mapping[str, str]) -> str:
    clean = {n: v for n, v in os.environ.items() if not n.startswith(PREFIX)}
    said = subprocess.run(
        TRIAL,
        env={**clean, **settings, "LD_PRELOAD": str(library)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        check=False,
    ).stderr
    # As the environment is decoded: what it repeats of a setting is found in it.
    return os.fsdecode(said)


def in_effect(library: Path, settings: Mapping[str, str]) -> dict[str, str]:
    """What a program under `settings` runs with: hakmem's options as the library lists them with
    these and the environment's, and all other variables as they are."""
    own = {n: v for n, v in {**os.environ, **settings}.items() if n.startswith(PREFIX)}
    others = {n: v for n, v in settings.items() if not n.startswith(PREFIX)}
    said = said_at_start(library, own | {VERBOSE: "1"})
    return others | dict(VALUE.findall(said)) | {VERBOSE: own.get(VERBOSE, "0")}


def without_effect(settings: Mapping[str, str]) -> dict[str, str]:
    """Of all that is in effect, the options that change nothing because the switch that their names
    begin with is off, each with that switch: HAKMEM_HEAP_PROFILE_RATE without
    HAKMEM_HEAP_PROFILE."""
    off = [name for name, value in settings.items() if name.startswith(PREFIX) and value == "0"]
    return {name: switch for switch in off for name in settings if name.startswith(f"{switch}_")}


def known_options(libraries: Sequence[Path]) -> list[str]:
    """The options that the libraries have, as they list them."""
    said = [said_at_start(library, {VERBOSE: "1"}) for library in libraries]
    return list(dict.fromkeys(name for text in said for name in LISTED.findall(text)))


def is_or_was_option(name: str, value: str, libraries: Sequence[Path]) -> bool:
    """Whether the libraries have an option of that name, or say that it is retired."""
    return name in known_options(libraries) or any(
        RETIRED in sentence
        for library in libraries
        for _, sentence in complaints(library, {name: value})
    )


def near_options(name: str, known: Sequence[str], cutoff: float) -> list[str]:
    """In any case of letters; without what all have in common, which would make them alike."""
    short = [option.removeprefix(PREFIX) for option in known]
    wanted = name.upper().removeprefix(PREFIX)
    return [PREFIX + s for s in get_close_matches(wanted, short, cutoff=cutoff)]


def hakmem_libraries(chosen: Sequence[Allocator]) -> list[Path]:
    there = [a.library for a in chosen if a.usable and a.library is not None]
    return [library for library in dict.fromkeys(there) if is_hakmem(library)]


def is_hakmem(library: Path) -> bool:
    """By what the file defines: its name says nothing, and starting under it may do anything."""
    try:
        with elf_file(library) as elf:
            table = elf.get_section_by_name(".dynsym")
            found = table.get_symbol_by_name(OWN_FUNCTION) if table else None
            return any(symbol["st_shndx"] != "SHN_UNDEF" for symbol in found or ())
    except OSError:
        return False
