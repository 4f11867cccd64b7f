"""JSON read, changed and written. Usage: documents.py FILE"""

import json
import sys
from pathlib import Path

text = Path(sys.argv[1]).read_text()
total = 0
for turn in range(3):
    records = json.loads(text)
    by_tag = {}
    for one in records:
        one["note"] = (one["note"] or "").title()
        for tag in one["tags"]:
            by_tag.setdefault(tag, []).append({**one, "tags": [tag, str(turn)]})
    written = json.dumps({tag: found[:20] for tag, found in sorted(by_tag.items())}, sort_keys=True)
    total = (total * 31 + len(written)) % 1000003
print(total, written[:500])
