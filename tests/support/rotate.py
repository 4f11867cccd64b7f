"""rotate.py FILE COUNT: runs COUNT of the commands in FILE, a line each (NAME=value... program argument...).

TEST_DAY in the environment, the number of the day, says which ones, and is the seed where a command has @seed@: other ones each
day. Each command is printed first, so that a failure can be repeated. Exit status: that of the first one that fails.
"""

import os
import shlex
import subprocess
import sys
import time
from pathlib import Path


def main() -> int:
    lines = [line for line in Path(sys.argv[1]).read_text().splitlines() if line]
    day = int(os.environ.get("TEST_DAY") or time.time() // 86400)
    count = min(int(sys.argv[2]), len(lines))
    for turn in range(day * count, day * count + count):
        command = lines[turn % len(lines)].replace("@seed@", str(turn))
        print(f"rotate: env {command}", flush=True)
        status = subprocess.run(["env", *shlex.split(command)]).returncode
        if status != 0:
            print(f"rotate: ended with {status}")
            return 1
    return 0


sys.exit(main())
