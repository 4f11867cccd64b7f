"""command.py SOURCE-TREE FOLDER: hakmem(1) and a page for each of its commands, hakmem-run(1) and so on, from what --help says.

click-man would do, but leaves \\b paragraphs, leading dots and hyphens of options as they are, and mandoc warns.
"""
import inspect
import os
import re
import sys
import time
from pathlib import Path

tree, folder = Path(sys.argv[1]), Path(sys.argv[2])
sys.path.insert(0, str(tree / "python"))

import click  # noqa: E402
from hakmem import cli  # noqa: E402

ENDING = """.SH ENVIRONMENT
Settings of the allocator itself, HAKMEM_PROFILE and others, are told in
.IR /usr/share/doc/libhakmem0/options.md.gz .
.SH SEE ALSO
{others}
"""


def roff(text: str) -> str:
    """As roff wants it: a word of options keeps its hyphens, and no line begins as a request does."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", text, flags=re.MULTILINE)


def blocks(text: str) -> str:
    """click's paragraphs; one that begins with \\b keeps its lines."""
    pages = []
    for block in re.split(r"\n\s*\n", text.strip()):
        if block.startswith("\b"):
            pages.append(".nf\n" + roff(block[1:].strip("\n")) + "\n.fi")
        else:
            pages.append(roff(" ".join(block.split())))
    return "\n.PP\n".join(pages)


def options(command: click.Command, context: click.Context) -> list[str]:
    lines = [".SH OPTIONS"]
    for option in command.get_params(context):
        record = option.get_help_record(context)
        if record is not None:
            lines += [".TP", f"\\fB{roff(record[0])}\\fR", roff(" ".join(record[1].split())) or "\\&"]
    return lines


def page(name: str, command: click.Command, context: click.Context, subcommands: dict[str, str]) -> str:
    title = name.replace(" ", "-")
    summary = (cli.COMMANDS.get(command.name) or command.get_short_help_str(100)).rstrip(".")
    lines = [
        f'.TH {title.upper()} 1 "{date}" "hakmem {version}" "hakmem"',
        ".SH NAME",
        f"{roff(title)} \\- {roff(summary)}",
        ".SH SYNOPSIS",
        f".B {roff(name)}",
        roff(" ".join(command.collect_usage_pieces(context))),
        ".SH DESCRIPTION",
        blocks(inspect.cleandoc(command.help or "")),
        *options(command, context),
    ]
    if subcommands:
        lines.append(".SH COMMANDS")
        for one, text in subcommands.items():
            lines += [".TP", f"\\fB{roff(one)}\\fR", f"{roff(text)} See {roff(title + '-' + one)}(1)."]
    others = [".BR libhakmem (3)"] if subcommands else [".BR hakmem (1),", ".BR libhakmem (3)"]
    return "\n".join(lines) + "\n" + ENDING.format(others="\n".join(others))


version = re.search(r"^project\(hakmem VERSION ([\d.]+)", (tree / "CMakeLists.txt").read_text(), re.MULTILINE)[1]
shipped = {name: text for name, text in cli.COMMANDS.items() if name not in cli.OF_THE_SOURCES}
# dpkg-buildpackage sets it: two builds make the same page.
date = time.strftime("%Y-%m-%d", time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH", time.time()))))
folder.mkdir(parents=True, exist_ok=True)
whole = click.Context(cli.main, info_name="hakmem", **cli.main.context_settings)
(folder / "hakmem.1").write_text(page("hakmem", cli.main, whole, shipped))
for name in shipped:
    one = cli.main.get_command(whole, name)
    text = page(f"hakmem {name}", one, click.Context(one, info_name=name, parent=whole), {})
    (folder / f"hakmem-{name}.1").write_text(text)
