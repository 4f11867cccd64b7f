"""Servers that refuse to run as root, and where Debian has PostgreSQL's own programs."""

import os
import pwd
import shutil
from pathlib import Path

UNPRIVILEGED = ("postgres", "nobody")
DEBIAN_FOLDERS = Path("/usr/lib/postgresql")


def tool(name):
    """A program of PostgreSQL's: the newest that Debian has, or the one in PATH."""
    versions = [p for p in DEBIAN_FOLDERS.glob("*/bin") if (p / name).exists()]
    if versions:
        return str(max(versions, key=lambda p: float(p.parent.name)) / name)
    return shutil.which(name)


def account():
    """Who a server runs as when we are root."""
    if os.geteuid() != 0:
        return None
    known = {user.pw_name: user for user in pwd.getpwall()}
    return next(known[name] for name in UNPRIVILEGED if name in known)


def as_account(command):
    user = account()
    if user is None:
        return command
    change = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
    # Changing the user takes the signal away that a parent's end sends.
    return [*change, "--pdeathsig=KILL", "--", *command]
