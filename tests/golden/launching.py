"""Runs a program through the small static launcher, because Linux carries the peak resident size of a forked process
over exec: under a Python parent every small program would seem as large as Python."""
import json
import os
import subprocess


def launch(launcher: str, command: list[str], preload: str | None = None) -> dict:
    read_end, write_end = os.pipe()
    options = ["--preload", preload] if preload else []
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HAKMEM_") and k != "LD_PRELOAD"}
    subprocess.run(
        [launcher, "--fd", str(write_end), *options, "--", *command],
        check=True,
        pass_fds=[write_end],
        stdout=subprocess.DEVNULL,
        env=environment,
        timeout=60,
    )
    os.close(write_end)
    with os.fdopen(read_end) as f:
        report = json.load(f)
    if report["exit"] != 0:
        raise SystemExit(f"{command} ended with {report}")
    return report
