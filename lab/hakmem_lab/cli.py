"""The `hakmem` command: a group with one module a subcommand."""

import click

from hakmem_lab.commands.ab import ab
from hakmem_lab.commands.ab_self_test import ab_self_test
from hakmem_lab.commands.bench import bench
from hakmem_lab.commands.compare import compare
from hakmem_lab.commands.completion import completion
from hakmem_lab.commands.demo import demo
from hakmem_lab.commands.pair import pair
from hakmem_lab.commands.peers import peers
from hakmem_lab.commands.pgo import pgo
from hakmem_lab.commands.record import record
from hakmem_lab.commands.replay import replay
from hakmem_lab.commands.run import run
from hakmem_lab.commands.safety import safety
from hakmem_lab.commands.scorecard import scorecard
from hakmem_lab.commands.soak import soak
from hakmem_lab.commands.tail import tail


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="hakmem-lab", prog_name="hakmem")
def main() -> None:
    """Measure hakmem beside other allocators."""


main.add_command(ab)
main.add_command(ab_self_test)
main.add_command(bench)
main.add_command(compare)
main.add_command(completion)
main.add_command(demo)
main.add_command(pair)
main.add_command(peers)
main.add_command(pgo)
main.add_command(record)
main.add_command(replay)
main.add_command(run)
main.add_command(safety)
main.add_command(soak)
main.add_command(scorecard)
main.add_command(tail)
