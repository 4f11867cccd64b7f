"""For mkdocs: README.md and CHANGELOG.md become pages, and links from documents to other files of the source tree lead to
copies of these files in the site. The documents themselves keep links that work in the source tree. Search ranks what was
decided and changed below what is, and long names in code break between their parts."""

import posixpath
import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
PAGES = {"README.md": "index.md", "CHANGELOG.md": "changelog.md"}
LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")
PIPE = re.compile(r"`[^`\n]*\\\|[^`\n]*`")
# Decisions tell how it came to be, and speak of everything: pages that tell what is come before them.
SEARCH_WEIGHTS = {"decisions/": 0.02, "changelog": 0.02}
# This generator takes what is in angle brackets for a tag, and leaves it out of the anchor; the forges do not.
PER_CLASS = re.compile(r"^### `(HAKMEM_\w+)<n>`$", re.MULTILINE)
INLINE = re.compile(r"<pre\b.*?</pre>|(<code>)(.*?)(</code>)", re.DOTALL)
ENTITY_OR_TAG = re.compile(r"(<[^>]*>|&\w+;|&#\d+;)")
SIGN = re.compile(r"([./=|,]|::)(?=\w)")
CODE = re.compile(r"^(?:```.*?^```|(?: {4}|\t).*?$)", re.MULTILINE | re.DOTALL)


def source_path(page):
    """Where a page of the site lies in the source tree."""
    return next((source for source, name in PAGES.items() if name == page), f"docs/{page}")


def copied_path(path):
    """A copy of a Markdown file would be taken for a page."""
    return f"source/{path}.txt" if path.endswith(".md") else f"source/{path}"


def target_in_site(page, target):
    """(path in the site or None, path of the file in the source tree to copy or None) of a link of `page`."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source_path(page)), target))
    if "://" in target or path.startswith("..") or not (ROOT / path).exists():
        return target, None  # strict mode complains of what is wrong
    if path in PAGES:
        return PAGES[path], None
    if (ROOT / path).is_dir():
        return None, None
    if path.startswith("docs/"):
        return path.removeprefix("docs/"), None
    return copied_path(path), path


def rewrite(page, markdown):
    """Links of `page` as the site needs them; one to a folder becomes the folder's name."""
    def link(found):
        target, _ = target_in_site(page, found[2])
        if target is None:
            return f"] (`{posixpath.normpath(posixpath.join(posixpath.dirname(source_path(page)), found[2]))}`)"
        if target != found[2]:
            target = posixpath.relpath(target, posixpath.dirname(page) or ".")
        return f"{found[1]}{target}{found[3] or ''}{found[4]}"

    parts, end = [], 0
    for code in CODE.finditer(markdown):
        parts += [LINK.sub(link, markdown[end : code.start()]), code[0]]
        end = code.end()
    text = "".join([*parts, LINK.sub(link, markdown[end:])])
    # In a table the forges want a pipe in code escaped, and this generator shows the escape.
    text = "\n".join(PIPE.sub(lambda code: code[0].replace("\\|", "|"), line) if line.startswith("|") else line
                     for line in text.split("\n"))
    # A folder's link has lost its target: so its brackets go, too.
    return re.sub(r"\[([^\[\]]*)\] (\(`[^`]*`\))", r"\1 \2", text)


def on_files(files, config):
    copies = set()
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    for file in list(files.documentation_pages()):
        for found in LINK.finditer(file.content_string):
            copies.add(target_in_site(file.src_uri, found[2])[1])
    for path in sorted(copies - {None}):
        files.append(File.generated(config, copied_path(path), abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown, page, **_):
    weight = next((weight for start, weight in SEARCH_WEIGHTS.items() if page.file.src_uri.startswith(start)), None)
    if weight is not None:
        page.meta["search"] = {"boost": weight}
    return PER_CLASS.sub(lambda found: f"{found[0]} {{ #{found[1].lower()}n }}", rewrite(page.file.src_uri, markdown))


def with_breaks(code):
    """Code may go on in the next line behind a sign, never within a name."""
    if code[1] is None:
        return code[0]
    parts = ENTITY_OR_TAG.split(code[2])  # every second one is a tag or an entity
    parts[::2] = [SIGN.sub(r"\1<wbr>", part) for part in parts[::2]]
    return code[1] + "".join(parts) + code[3]


def on_post_page(output, **_):
    return INLINE.sub(with_breaks, output)
