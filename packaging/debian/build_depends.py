#!/usr/bin/env python3
"""build_depends.py CONTROL PROFILES: the names of the packages that a build with these profiles needs, one a line."""
import re
import sys
from pathlib import Path

control = Path(sys.argv[1]).read_text()
profiles = sys.argv[2].split()
field = re.search(r"^Build-Depends:(.*?)^\S", control, re.MULTILINE | re.DOTALL)[1]
for entry in filter(str.strip, field.split(",")):
    unwanted = re.findall(r"<!([\w.-]+)>", entry)
    if set(unwanted) & set(profiles):
        continue
    name = entry.split()[0].split(":")[0]
    if name == "debhelper-compat":
        name = "debhelper"
    print(name)
