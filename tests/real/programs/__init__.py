"""All programs, in the order they run: a module a kind, each of which enters its own into the table."""

from programs import interpreters, python, toolchain, databases, database_suites, servers, media, tools  # noqa: F401, I001
from registry import PROGRAMS

__all__ = ["PROGRAMS"]
