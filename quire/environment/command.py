"""`quire collect-env`: prints the information on the machine that a bug report should include."""

from __future__ import annotations

import json

import click

from quire.cli import all_commands
from quire.environment.collect import Section, collect
from quire.options.collect_env import CollectEnvOptions
from quire.options.command import OptionsCommand


def main(collect_env: CollectEnvOptions) -> None:
    """Prints the information, as text or JSON."""
    found = collect(secret_names())
    click.echo(json.dumps(found, indent=2, ensure_ascii=False) if collect_env.json else _text(found))


def secret_names() -> set[str]:
    """Environment variables of all secret options."""
    commands = [command for _, command in all_commands() if isinstance(command, OptionsCommand)]
    fields = [field for command in commands for section in command.sections() for field in section.fields]
    return {name for field in fields if field.metadata["secret"] for name in field.environment_variables}


def _text(found: dict[str, Section]) -> str:
    return "\n\n".join(
        "\n".join([name, *(f"  {key}: {_indented(text)}" for key, text in section.items())])
        for name, section in found.items()
        if section
    )


def _indented(text: str) -> str:
    """Indents the further lines of a value."""
    return text.replace("\n", "\n    ")
