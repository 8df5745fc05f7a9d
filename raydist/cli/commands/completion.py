"""`raydist completion SHELL`: the script by which a shell completes commands, options and names of runs."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from raydist.cli.screen import output

SHELLS = ("bash", "zsh", "fish")
# What click looks for in the environment when the shell asks.
VARIABLE = "_RAYDIST_COMPLETE"


@click.command("completion", epilog="More: `raydist guide commands`.")
@click.argument("shell", metavar="bash|zsh|fish", type=click.Choice(SHELLS))
def command(shell: str) -> None:
    """Print the completion script of a shell.

    \b
    Example:
      raydist completion bash > ~/.local/share/bash-completion/completions/raydist
    """
    found = get_completion_class(shell)
    assert found is not None
    root = click.get_current_context().find_root().command
    output.show(found(root, {}, "raydist", VARIABLE).source())
