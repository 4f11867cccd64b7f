"""Every relative link in README.md, CONTRIBUTING.md, SECURITY.md and docs/ leads to a file or folder, and every anchor to a heading.

    links.py [ROOT]
"""

import sys
from pathlib import Path
from urllib.parse import unquote

from pages import REPO, anchors, documents, front_documents, links


def faults(root):
    known = {}
    for page in documents(root) + front_documents(root):
        for number, target in links(page):
            if "://" in target or target.startswith("mailto:"):
                continue
            path, _, anchor = unquote(target).partition("#")
            place = f"{page.relative_to(root)}:{number}: {target}"
            if path.startswith("/"):
                yield f"{place}: not relative"
                continue
            file = (page.parent / path).resolve() if path else page
            if not file.is_relative_to(root):
                yield f"{place}: leaves the source tree"
            elif not file.exists():
                yield f"{place}: no such file"
            elif anchor and file.suffix == ".md":
                if file not in known:
                    known[file] = anchors(file)
                if anchor not in known[file]:
                    yield f"{place}: no such heading"


def main():
    root = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else REPO
    found = list(faults(root))
    print(*found, sep="\n", end="\n" if found else "")
    pages = documents(root) + front_documents(root)
    print(f"{len(pages)} documents, {sum(len(list(links(page))) for page in pages)} links, "
          f"{len(found)} wrong")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
