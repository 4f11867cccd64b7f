"""junit_result.py FILE TEST: "passed", or "FAILED" with the reason, of one test in pytest's XML. A skipped test counts as failed."""
import sys
from pathlib import Path
from xml.etree import ElementTree

path, name = Path(sys.argv[1]), sys.argv[2]
cases = [case for case in ElementTree.parse(path).iter("testcase") if case.get("name") == name] if path.is_file() else []
if not cases:
    print("FAILED did not run")
    sys.exit()
for case in cases:
    for kind in ("failure", "error", "skipped"):
        found = case.find(kind)
        if found is not None:
            said = (found.get("message") or kind).split("\n")[0]
            print(f"FAILED {kind}: {said[:120]}")
            sys.exit()
print(f"passed {float(cases[0].get('time', 0)):.1f} s")
