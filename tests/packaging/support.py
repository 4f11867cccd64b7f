"""What the tests of packages share: commands that must work, and the release that packaging.release has written."""
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SKIPPED = 77


def clean_environment(**more: str) -> dict[str, str]:
    """Without what the caller's shell sets for the programs that are tested."""
    unwanted = ("LD_PRELOAD", "LD_LIBRARY_PATH", "PKG_CONFIG_PATH", "CMAKE_PREFIX_PATH", "CFLAGS", "CXXFLAGS", "LDFLAGS", "CC", "CXX")
    kept = {k: v for k, v in os.environ.items() if k not in unwanted and not k.startswith(("HAKMEM_", "CONAN_", "GIT_", "MESON"))}
    return {**kept, **more}


def run(*command: str | Path, env: dict[str, str] | None = None, **options) -> str:
    result = subprocess.run(
        [str(c) for c in command], capture_output=True, text=True, timeout=280, env=env or clean_environment(), **options
    )
    if result.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}: status {result.returncode}\n{result.stdout}{result.stderr}")
    return result.stdout + result.stderr


def expect(holds: bool, what: str) -> None:
    if not holds:
        raise SystemExit(f"not so: {what}")


def skip(why: str) -> None:
    print(why)
    sys.exit(SKIPPED)


def release_archive(folder: str) -> Path:
    """The source release in a folder that packaging.release has filled."""
    archives = list(Path(folder).glob("hakmem-*.tar.xz"))
    if not archives:
        skip(f"no release in {folder}: the tests of packages need a git clone")
    expect(len(archives) == 1, f"one release in {folder}")
    return archives[0]


def tool(name: str) -> Path:
    path = Path(os.environ.get("PACKAGING_TOOLS", ROOT / "build/packaging-tools")) / "bin" / name
    if not path.exists():
        skip(f"no {path}: run packaging/tools.sh")
    return path
