"""`hakmem completion`: what a shell needs to complete our commands, options and allocators."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

PROGRAM, VARIABLE = "hakmem", "_HAKMEM_COMPLETE"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion script of SHELL, to be read by it at start.

    \b
      bash: eval "$(hakmem completion bash)"       in ~/.bashrc
      zsh:  eval "$(hakmem completion zsh)"        in ~/.zshrc, after compinit
      fish: hakmem completion fish >~/.config/fish/completions/hakmem.fish
    """
    root = context.find_root().command
    click.echo(get_completion_class(shell)(root, {}, PROGRAM, VARIABLE).source())
