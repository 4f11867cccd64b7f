"""The version is CMake's: it is written in one place, ../CMakeLists.txt."""

from __future__ import annotations

import re
from pathlib import Path

from setuptools import setup

PROJECT = re.compile(r"^project\(hakmem VERSION ([\d.]+)", re.MULTILINE)

setup(version=PROJECT.search((Path(__file__).parents[1] / "CMakeLists.txt").read_text())[1])
