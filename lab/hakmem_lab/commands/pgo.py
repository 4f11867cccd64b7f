"""`hakmem pgo`: a profile-guided build."""

import click
from hakmem.options import INTERRUPTED
from hakmem.output import tables

from hakmem_lab.pgo import TRAINING, build_and_train, smoke


@click.command()
def pgo() -> None:
    """Build with a profile into build/pgo, and try what came of it.

    Trained on the bench programs and one real program. Covers libhakmem.so; the static archive in
    build/pgo is built without the profile. `make pgo` also measures it beside the release build.
    """
    console = tables.make_console()
    try:
        with tables.progress_line(console, "training", len(TRAINING)) as progress:
            task = progress.task_ids[0]
            library = build_and_train(lambda what: progress.update(task, advance=1, now=what))
        with console.status("trying the build"):
            passed = smoke(library)
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
    console.print(f"{library}: {len(TRAINING)} training runs; passed: {', '.join(passed.passed)}")
    if passed.not_tried:
        console.print(f"not tried: {', '.join(passed.not_tried)}")
