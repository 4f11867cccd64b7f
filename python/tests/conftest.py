from __future__ import annotations

from small_build import build, knowing, use_build

__all__ = ["build", "knowing", "use_build"]
