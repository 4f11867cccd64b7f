"""The shared library's NEEDED entries: glibc and nothing else, so that a C program loads no C++ runtime."""
import re
import subprocess
import sys

text = subprocess.run(["readelf", "-d", sys.argv[1]], check=True, capture_output=True, text=True).stdout
needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", text))
extra = needed - {"libc.so.6", "ld-linux-x86-64.so.2"}
if not needed or extra:
    sys.exit(f"NEEDED: {sorted(needed)}; not expected: {sorted(extra)}")
if not re.search(r"NODELETE", text):
    sys.exit("the library is not linked -z nodelete: dlclose would pull live code away")
