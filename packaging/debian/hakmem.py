#!/usr/bin/python3
"""The hakmem command. Its package lies in a folder of its own: it is a program, and no library for others."""
import sys

sys.path.insert(0, "/usr/lib/hakmem")
# symbolic and pydemumble are not in Debian. Their stand-ins come last: the real ones are used where somebody installed them.
sys.path.append("/usr/lib/hakmem/stand-ins")

from hakmem.__main__ import main  # noqa: E402

main()
