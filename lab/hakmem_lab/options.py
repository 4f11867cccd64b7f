"""Options that several commands share, and their checks."""

import secrets

from hakmem_lab.environment import allowed_cpus, default_cpu
from hakmem_lab.errors import LabError


def resolve_cpus(given: str | None, default: str | None) -> str | None:
    """A CPU list for the launcher; `none` leaves programs where the kernel puts them."""
    if given is None:
        return default
    if given == "none":
        return None
    if given == "auto":
        return default_cpu()
    wanted = parse_cpu_list(given)
    barred = sorted(wanted - set(allowed_cpus()))
    if barred:
        usable = ",".join(map(str, allowed_cpus()))
        raise LabError(f"--cpu: CPU {barred[0]} is not usable here (usable: {usable})", 2)
    return given


def parse_cpu_list(text: str) -> set[int]:
    """The CPUs of a list such as 1 or 0,2-3."""
    cpus: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not first.isdecimal() or not (last or first).isdecimal():
            raise LabError(f"--cpu: '{text}' is no CPU list (such as 1 or 0,2-3), none or auto", 2)
        cpus |= set(range(int(first), int(last or first) + 1))
    return cpus


def resolve_seed(given: int | None) -> int:
    """The given seed, or a fresh one that is printed and can be given next time."""
    return secrets.randbelow(1 << 31) if given is None else given
