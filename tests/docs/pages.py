"""The documents as these tests see them: which files, their links, their anchors, their fences."""

import re
from dataclasses import dataclass
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]

FENCE = re.compile(r"^( {0,3})(`{3,}|~{3,})\s*([\w+-]*)")
INLINE_CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)")
LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
DEFINITION = re.compile(r"^ {0,3}\[[^\]]+\]:\s+<?([^\s>]+)")
HTML_LINK = re.compile(r"<(?:a|img)\b[^>]*?(?:href|src)=\"([^\"]+)\"")
HTML_ANCHOR = re.compile(r"<[a-z]+\b[^>]*?(?:id|name)=\"([^\"]+)\"")
HEADING = re.compile(r"^ {0,3}#{1,6}\s+(.*?)\s*#*$")
NOT_RUN = re.compile(r"^<!-- not run: \S.* -->$")
# A page that a program writes, as its first lines say; and the part of a page between two such marks.
GENERATED = re.compile(r"^<!-- (?:Generated from|Written by) ")
GENERATED_PART = re.compile(r"^<!-- begin: written by .*?^<!-- end -->$", re.MULTILINE | re.DOTALL)


def documents(root=REPO):
    """README.md and every page below docs/, decisions included."""
    return [root / "README.md", *sorted((root / "docs").rglob("*.md"))]


def front_documents(root=REPO):
    """What a forge shows besides README.md: their links are checked as well."""
    return [path for path in (root / "CONTRIBUTING.md", root / "SECURITY.md") if path.exists()]


def command_documents(root=REPO):
    """The same without the decisions: these tell what was measured when they were taken."""
    return [page for page in documents(root) if "decisions" not in page.parts]


def is_generated(page):
    return any(GENERATED.match(line) for line in page.read_text(encoding="utf-8").splitlines()[:5])


@dataclass
class Fence:
    page: Path
    line: int  # of the fence's opening
    language: str
    text: str
    mark: str  # the line above that says why it is not run, or ""


def split(page):
    """The page as (prose, fences): prose is (line number, text) without what is inside fences."""
    prose, fences = [], []
    closing, above = None, ""
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if closing:
            if line.strip().startswith(closing) and not line.strip().strip(closing[0]):
                closing = None
            else:
                fences[-1].text += line.removeprefix(indent) + "\n"
        elif opening := FENCE.match(line):
            indent, closing = opening[1], opening[2]
            mark = above if NOT_RUN.match(above) else ""
            fences.append(Fence(page, number, opening[3], "", mark))
        else:
            prose.append((number, line))
        above = line.strip()
    if closing:
        raise ValueError(f"{page}:{fences[-1].line}: the fence is not closed")
    return prose, fences


def links(page):
    """(line number, target) of each link of the page, code left out."""
    for number, line in split(page)[0]:
        if line.startswith("    ") and not line.lstrip().startswith(("-", "*", "|")):
            continue  # an indented block of code
        line = INLINE_CODE.sub(lambda code: "x" * len(code[0]), line)
        for pattern in (LINK, DEFINITION, HTML_LINK):
            for found in pattern.finditer(line):
                yield number, found[1]


def slug(heading):
    """The anchor that a heading gets, by the rule of the usual forges."""
    heading = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)  # links count as their text
    # Tags count for nothing, but in code what looks like one is text.
    heading = re.sub(r"(`[^`]*`)|<[^>]+>", lambda found: found[1] or "", heading)
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def anchors(page):
    """All anchors of a page; a heading that is there twice gets -1, -2 and so on."""
    names, seen = set(), {}
    for _, line in split(page)[0]:
        names.update(HTML_ANCHOR.findall(line))
        if heading := HEADING.match(line):
            name = slug(heading[1])
            count = seen.get(name, 0)
            seen[name] = count + 1
            names.add(f"{name}-{count}" if count else name)
    return names
