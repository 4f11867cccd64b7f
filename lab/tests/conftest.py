from __future__ import annotations

from small_build import build, interruptible, knowing, use_build

__all__ = ["build", "interruptible", "knowing", "use_build"]
