"""release.py FOLDER: writes the source release of the files as they are, and the recipes with it, for the other tests."""
import shutil
import subprocess
import sys
from pathlib import Path

from support import ROOT, clean_environment, run, skip

folder = Path(sys.argv[1]).resolve()
shutil.rmtree(folder, ignore_errors=True)
clone = subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, env=clean_environment())
if clone.returncode != 0:
    skip(f"{ROOT} is not a git clone")
run(ROOT / "packaging/source.sh", folder, "--worktree")
run(ROOT / "packaging/recipes.sh", folder, folder.as_uri())
