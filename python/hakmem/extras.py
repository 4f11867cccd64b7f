"""What `pip install hakmem` leaves out: an option that needs it says so before anything runs."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

import click

from hakmem.errors import UserError

INSTALL = "pip install 'hakmem[report]'"
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
    """The callback of an option whose value, where one is given, needs a module."""

    def check(context: click.Context, parameter: click.Parameter, value: object) -> object:
        if value is not None and not context.resilient_parsing:
            require(parameter.opts[0], module)
        return value

    return check
