"""resident.py LIBRARY LAUNCHER BENCH: peak resident memory under the library is at most glibc's plus 1 MB."""
import shutil
import sys

from launching import launch

ALLOWED_KB = 1024


def peak_kb(launcher: str, command: list[str], preload: str | None) -> int:
    return min(launch(launcher, command, preload)["peak_rss_kb"] for _ in range(5))


def main(library: str, launcher: str, bench: str) -> list[str]:
    problems = []
    for command in ([shutil.which("true")], [bench, "2000000", "400"]):
        ours, glibc = peak_kb(launcher, command, library), peak_kb(launcher, command, None)
        print(f"{' '.join(command)}: {ours} KB, glibc {glibc} KB")
        if ours > glibc + ALLOWED_KB:
            problems.append(f"{command}: {ours} KB, glibc {glibc} KB")
    return problems


if __name__ == "__main__":
    sys.exit("\n".join(main(*sys.argv[1:4])) or 0)
