"""The result as a Markdown table, and its place in docs/real-programs.md."""

from dataclasses import dataclass

BEGIN = "<!-- begin: written by tests/real/run.py -->\n"
END = "<!-- end -->\n"
HEADINGS = (
    "program",
    "version",
    "what it did",
    "library",
    "verdict",
    "CPU seconds, glibc / with it",
    "peak RSS in MB, glibc / with it",
    "proof",
)


class NoPlace(Exception):
    """The document has no marked place for the table."""


@dataclass(frozen=True)
class Row:
    program: str
    version: str
    did: str
    library: str
    verdict: str
    cpu_seconds: tuple[float, float] | None = None
    peak_rss_mb: tuple[float, float] | None = None
    proof: str = ""

    def cells(self):
        return (
            self.program,
            self.version,
            self.did,
            self.library,
            self.verdict,
            "%.1f / %.1f" % self.cpu_seconds if self.cpu_seconds else "",
            "%.0f / %.0f" % self.peak_rss_mb if self.peak_rss_mb else "",
            self.proof,
        )


def markdown(rows, facts):
    """`facts` is one sentence about the machine and the libraries."""
    lines = [facts, "", table_line(HEADINGS), "|" + "---|" * len(HEADINGS)]
    lines += [table_line(row.cells()) for row in rows]
    return "\n".join(lines) + "\n"


def table_line(cells):
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def replace_table(document, text):
    """The document with `text` between the two marks."""
    before, begin, rest = document.partition(BEGIN)
    _old, end, after = rest.partition(END)
    if not begin or not end:
        raise NoPlace(f"no place for the table: the lines {BEGIN.strip()!r} and {END.strip()!r} are missing")
    return f"{before}{begin}{text}{end}{after}"
