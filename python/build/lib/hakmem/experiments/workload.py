"""What a comparison runs under each allocator: a program, or a server with a load against it."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from hakmem import options
from hakmem.destinations import WORD
from hakmem.errors import UserError
from hakmem.running import programs
from hakmem.running.launching import Start
from hakmem.running.serving import PORT_MARK, READY_LIMIT_S, STOP_LIMIT_S, ServerRunner
from hakmem.running.witness import Runner


@dataclass(frozen=True)
class Workload:
    """A command line that runs under each allocator, and how it is run."""

    command: tuple[str, ...]
    runner: Runner

    @property
    def is_server(self) -> bool:
        return isinstance(self.runner, ServerRunner)

    @property
    def facts(self) -> dict[str, str]:
        if isinstance(self.runner, ServerRunner):
            return {
                "server": shlex.join(self.command),
                "server's load": shlex.join(self.runner.load),
            }
        found = {"program": shlex.join(self.command)}
        return found | ({"input": str(self.runner.stdin)} if self.runner.stdin else {})

    def require_working(self, limit_s: float = 0.0) -> None:
        """A server that does not work at all is told of once, not once for each allocator."""
        if not self.is_server:
            return
        if problem := self.runner.run(Start(self.command, limit_s=limit_s)).problem:
            raise UserError(f"with no allocator preloaded: {problem}")


def workload_options() -> options.Decorator:
    """--stdin and a server's, to be given to chosen_workload()."""
    return options.stacked(
        options.stdin_option(", from its beginning in every run"),
        options.option(
            "--server",
            "Compare under this server, in place of PROGRAM. {port} in it is a free port.",
            metavar="COMMAND",
        ),
        options.option(
            "--load",
            "Run this against the server once it takes connections; its time is the figure, or "
            "what --metric finds in its output. {port} is the server's.",
            metavar="COMMAND",
        ),
        options.number_option(
            "--port",
            "The server's port. Default: another free one for each run, where {port} is used.",
            least=1,
            most=65535,
            metavar="N",
        ),
        options.option(
            "--stop",
            "Signal that ends the server. A server that has not ended after "
            f"{STOP_LIMIT_S:g} s is killed, and its run does not count.",
            "SIGTERM",
            WORD,
            metavar="SIGNAL",
        ),
        options.number_option(
            "--ready-timeout ready_s",
            "How long to wait for the server's port.",
            READY_LIMIT_S,
            0.01,
            metavar="SECONDS",
        ),
    )


def chosen_workload(
    program: Sequence[str],
    stdin: Path | None,
    server: str | None,
    load: str | None,
    port: int | None,
    stop: str,
    ready_s: float,
) -> Workload:
    """What was asked for, checked; nothing has been started."""
    if server is None:
        options.refuse("there is no --server", {"load", "port", "stop", "ready_s"})
        if not program:
            raise click.UsageError("Missing argument 'PROGRAM...'")
        programs.require_servable(program)
        if stdin is not None and not stdin.is_file():
            raise UserError(f"--stdin: {stdin} cannot be read anew for each run", 2)
        return Workload(tuple(program), Runner(stdin))
    if program:
        raise UserError(f"--server and PROGRAM '{program[0]}' exclude each other", 2)
    if stdin is not None:
        raise UserError("--stdin is for PROGRAM, not for --server", 2)
    if load is None:
        raise UserError("--server needs --load, a command that uses the server", 2)
    command = options.split_command("--server", server)
    client = options.split_command("--load", load)
    for words in (command, client):
        programs.require_program(words)
    if port is None and not any(PORT_MARK in word for word in command):
        raise UserError(f"--server: give --port N, or put {PORT_MARK} where the port stands", 2)
    programs.require_servable(command)
    runner = ServerRunner(load=tuple(client), port=port, stop=signal_number(stop), ready_s=ready_s)
    return Workload(tuple(command), runner)


def signal_number(text: str) -> int:
    """By its name, with or without SIG, or its number."""
    name = text.upper() if text.upper().startswith("SIG") else f"SIG{text.upper()}"
    try:
        return signal.Signals(int(text)) if text.isdecimal() else signal.Signals[name]
    except (ValueError, KeyError):
        raise UserError(f"--stop: '{text}' is no signal (such as SIGTERM or INT)", 2) from None
