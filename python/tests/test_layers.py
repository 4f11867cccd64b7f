from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "hakmem"
# A folder uses itself and those after it. Files of no folder stand where they are named.
LAYERS = (
    "__main__", "commands", "cli", "experiments", "options", "traces", "profiles", "output",
    "processes", "measuring", "running", "allocators", "destinations", "inputs", "documents",
    "environment", "elf_files", "files", "extras", "errors", "plain_text", "streams",
)  # fmt: skip


def layer(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def used(source: str):
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "hakmem":
            yield from (f"{node.module}.{name.name}" for name in node.names)
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name.startswith("hakmem"))


def test_imports_are_found_and_layers_are_all_there_is():
    found = list(used("from hakmem import cli\nfrom hakmem_lab import x\nimport hakmem.output.a"))
    assert found == ["hakmem.cli", "hakmem.output.a"]
    there = {p.stem for p in PACKAGE.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
    assert there - {"__init__"} == set(LAYERS)


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=str)
def test_imports_go_one_way(path):
    own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if own == "__init__":
        return
    for module in used(path.read_text()):
        assert LAYERS.index(layer(module)) >= LAYERS.index(own), f"{own} uses {module}"


LOADED = """
import sys
from hakmem.cli import main
try:
    main(args=[{command!r}, "--help"], prog_name="hakmem")
finally:
    print(*sorted({{name.partition(".")[0] for name in sys.modules}}), file=sys.stderr)
"""


@pytest.mark.parametrize("command", ["run", "compare", "ab", "record", "replay", "tail"])
def test_what_only_figures_and_files_need_is_loaded_with_them(command):
    words = [sys.executable, "-c", LOADED.format(command=command)]
    told = subprocess.run(words, capture_output=True, text=True, check=True).stderr.split()
    assert "click" in told
    assert not {"numpy", "scipy", "matplotlib", "elftools"} & set(told)
