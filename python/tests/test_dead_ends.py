"""What the command says can be followed from a wheel, which has no documents and no source tree."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from hakmem.allocators import cache

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "python" / "hakmem"
DEAD_ENDS = re.compile(r"docs/[\w-]+\.md|go tool pprof")


def said(source: str):
    """All texts but the documentation of modules; help texts are those of functions."""
    tree = ast.parse(source)
    modules = {id(tree.body[0].value)} if isinstance(tree.body[0], ast.Expr) else set()
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text and id(node) not in modules:
            yield node.value


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: p.name)
def test_no_text_leads_to_a_file_that_a_wheel_lacks(path):
    # A command of the source tree writes that one.
    texts = [text.replace("Write docs/scorecard.md", "") for text in said(path.read_text())]
    assert [text for text in texts if DEAD_ENDS.search(text)] == []


def test_dead_ends_are_found():
    assert list(said('"""a"""\ndef f():\n    """docs/b.md"""\n    return "c"')) == [
        "docs/b.md",
        "c",
    ]


def test_advice_to_build_peers_is_for_who_can(monkeypatch):
    assert cache.not_built("snmalloc") == "not built (hakmem peers build snmalloc)"
    monkeypatch.setattr(cache, "find_spec", lambda _name: None)
    for name in ("", "snmalloc"):
        assert "peers build" not in cache.not_built(name)
        assert "--lib NAME=PATH" in cache.not_built(name)


def test_documents_advise_no_restart_that_profile_does_not_need():
    text = (ROOT / "docs" / "troubleshooting.md").read_text()
    part = text.partition("## Memory grows")[2].partition("\n## ")[0]
    assert "HAKMEM_HEAP_PROFILE=1" not in part
    assert re.search(r"hakmem profile PID .*no restart", part)


def test_headers_have_the_words_of_the_glossary():
    for header in sorted((ROOT / "include" / "hakmem").glob("*.h")):
        old = re.findall(r"\b(?:[Ss]pans and|slabs,) runs\b|; runs are", header.read_text())
        assert not old, header
