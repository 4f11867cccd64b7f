"""The `hakmem` command: a group with one module a subcommand."""

import click

from hakmem_lab.commands.compare import compare
from hakmem_lab.commands.demo import demo
from hakmem_lab.commands.pair import pair
from hakmem_lab.commands.peers import peers


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Measure hakmem beside other allocators."""


main.add_command(compare)
main.add_command(demo)
main.add_command(pair)
main.add_command(peers)
