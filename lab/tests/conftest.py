from __future__ import annotations

from small_build import (
    build,
    interruptible,
    knowing,
    outlives_programs,
    pytest_collection_modifyitems,
    pytest_configure,
    use_build,
)

__all__ = [
    "build",
    "interruptible",
    "knowing",
    "outlives_programs",
    "pytest_collection_modifyitems",
    "pytest_configure",
    "use_build",
]
