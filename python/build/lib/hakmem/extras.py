"""What `pip install hakmem` leaves out: a command says so before anything runs, and after it has
looked at its command line: nobody installs a package for a command line that is wrong."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

import click

from hakmem.errors import UserError

INSTALL = "pip install 'hakmem[report]'"
# For the help of an option.
NEEDED = "Needs hakmem[report]."
ASKED = "hakmem.asked"
# What people call a package that is imported under another name.
TITLES = {"google.protobuf": "protobuf", "prometheus_client": "prometheus-client"}
MATPLOTLIB, PROTOBUF, PROMETHEUS = "matplotlib", "google.protobuf", "prometheus_client"

Callback = Callable[[click.Context, click.Parameter, object], object]


def is_there(module: str) -> bool:
    """Looked for and not imported: matplotlib takes longer to import than most commands run."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def require(what: str, *modules: str) -> None:
    missing = [TITLES.get(module, module) for module in modules if not is_there(module)]
    if missing:
        raise UserError(f"{what} needs {' and '.join(missing)}: {INSTALL}", 2)


def needing(module: str) -> Callback:
    """The callback of an option whose value, where one is given, needs a module: see
    require_asked()."""

    def check(context: click.Context, parameter: click.Parameter, value: object) -> object:
        if value is not None and not context.resilient_parsing:
            context.meta.setdefault(ASKED, {})[parameter.opts[0]] = module
        return value

    return check


def require_asked() -> None:
    """Whatever the options of this command line need; for when they are known to be right."""
    for option, module in click.get_current_context().meta.get(ASKED, {}).items():
        require(option, module)
