"""Pages of experiments: what the terminal shows, with pictures, in one file that needs no other."""

import io
from collections.abc import Callable, Iterable, Mapping, Sequence

from hakmem.output import report
from hakmem.output.streams import PlainConsole
from rich.console import Console

WIDTH = 150
STYLE = "body { max-width: 90rem; } pre { font-size: .85rem; line-height: 1.3; }"


def page(
    title: str,
    draw: Callable[[Console], None],
    facts: Mapping[str, str],
    pictures: Iterable[str] = (),
    notes: Sequence[str] = (),
) -> str:
    """`draw` prints summary and tables to a console."""
    plain = {"highlight": False, "markup": False, "emoji": False}
    console = PlainConsole(record=True, file=io.StringIO(), width=WIDTH, **plain)
    draw(console)
    shown = console.export_html(inline_styles=True, code_format="<pre>{code}</pre>")
    parts = [report.summary_list(notes), f'<div class="scroll">{shown}</div>', *pictures]
    parts += ["<h2>How it was measured</h2>", report.facts_table(facts)]
    return report.document(title, parts, style=STYLE)


def picture(svg: str, title: str, label: str) -> str:
    return f'<figure class="scroll large">{report.inlined(svg, title, label)}</figure>'
