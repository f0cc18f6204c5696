"""`quire completion`: prints the shell script that completes commands, options, choices and the words of --help."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")
_VARIABLE = "_QUIRE_COMPLETE"


@click.command(epilog='bash, zsh: eval "$(quire completion bash)". fish: quire completion fish | source')
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Prints the shell script that enables completion of quire's commands and options."""
    made_by = get_completion_class(shell)
    if made_by is None:
        raise click.UsageError(f"Completion for {shell} is not supported.", ctx)
    script = made_by(ctx.find_root().command, {}, "quire", _VARIABLE)
    click.echo(script.source_template % script.source_vars())
