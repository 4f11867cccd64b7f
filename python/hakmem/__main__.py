"""Where the installed command begins, and `python -m hakmem`.

Until a command's own code runs, and from its end on, an interrupt has nothing to clean up: it ends
the process at once, by the signal. Python would tell of the import that it broke off.
"""

from __future__ import annotations

from hakmem.running import interruption


def main() -> None:
    interruption.end_at_once()
    from hakmem.cli import main as command

    try:
        command(prog_name="hakmem")
    finally:
        interruption.end_at_once()


if __name__ == "__main__":
    main()
