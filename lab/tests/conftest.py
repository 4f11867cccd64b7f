from __future__ import annotations

from small_build import build, use_build

__all__ = ["build", "use_build"]
