"""Where the installed command begins, and `python -m hakmem`.

Until a command's own code runs, and from its end on, an interrupt has nothing to clean up: it ends
the process at once, by the signal. Python would tell of the import that it broke off.
"""

# ruff: noqa: I002
# The module below `signal` is built in: nothing has to be read before an interrupt is quiet.
import _signal as signal


def end_at_once() -> None:
    """Whoever started us in the background may have had it ignored: so it stays."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def main() -> None:
    end_at_once()
    from hakmem.cli import main as command

    try:
        command(prog_name="hakmem")
    finally:
        end_at_once()


if __name__ == "__main__":
    main()
