"""The documents stay short: docs/ has at most 18,000 words, README.md at most 900, counted as `wc -w` does.

    words.py [ROOT]

Decisions do not count, nor what programs write: whole pages, and parts between `<!-- begin: written by … -->` and
`<!-- end -->`.
"""

import sys
from pathlib import Path

from pages import GENERATED_PART, REPO, command_documents, is_generated

MOST_README = 900
MOST_DOCS = 18_000


def words(page):
    return 0 if is_generated(page) else len(GENERATED_PART.sub("", page.read_text(encoding="utf-8")).split())


def main():
    root = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else REPO
    readme, *pages = command_documents(root)
    counts = {page: words(page) for page in pages}
    for page, count in counts.items():
        print(f"{count:7,} {page.relative_to(root)}")
    faults = 0
    for name, count, most in (("README.md", words(readme), MOST_README), ("docs/", sum(counts.values()), MOST_DOCS)):
        print(f"{name}: {count:,} words, at most {most:,}" + (": too long" if count > most else ""))
        faults += count > most
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
