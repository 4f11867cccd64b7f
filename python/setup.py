"""The version is CMake's: it is written in one place, ../CMakeLists.txt.

With libraries in hakmem/lib (packaging/wheel/package.sh) the wheel is one of a processor.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from setuptools import Distribution, setup

HERE = Path(__file__).parent
PROJECT = re.compile(r"^project\(hakmem VERSION ([\d.]+)", re.MULTILINE)


class WithLibraries(Distribution):
    def has_ext_modules(self) -> bool:
        return (HERE / "hakmem" / "lib").exists()


# Where the sources are, as packaging/README.md has it; else where the project's documentation is.
home = os.environ.get("HAKMEM_REPOSITORY") or "https://docs.rs/hakmem"
version = PROJECT.search((HERE.parent / "CMakeLists.txt").read_text())[1]
setup(version=version, distclass=WithLibraries, url=home)
