"""Generates the reference page of all options from their declarations: `python -m quire.docs > docs/options.md`."""

from __future__ import annotations

from quire.cli import all_commands
from quire.options.base import OptionField, OptionGroup
from quire.options.command import OptionsCommand

_HEAD = """# Options

Every option is a flag, an environment variable and a key of a `--config` YAML file (the flag without its dashes). The
flag wins over the variable, the variable over the file, the file over the default. `quire serve` takes the options of
all services. Numbers may be written `32K` (32,768) or `25.6k` (25,600). Options that take several values are repeated,
or given one JSON list (`--allowed-origins '["https://a.example", "https://b.example"]'`); variables also take words.
Where MODEL comes first, or by `--model`, so do flags (`--middleware a.One b.Two`). Those that say that they take
several words do so anywhere, as vLLM's: up to the next flag, or to `--`, so that MODEL behind them would be one.
A key of one that is a JSON object may be a flag of its own (`--speculative-config.method ngram`). Flags may be written
with underscores.

Flags, keys and variables of vLLM are understood: what has a counterpart acts as it and says so, what has no effect says
that, and what cannot be had is refused with the reason. A variable `QUIRE_…` that is no option is named at start. The
link variable of a Kubernetes service called `quire`, `QUIRE_PORT=tcp://…`, is passed over with a warning.

`--help` shows all options of a command; `--help=listgroup` lists their groups, `--help=GROUP` and `--help=OPTION` show
one, `--help=WORD` finds a word, `--help=all` adds the flags of vLLM that Quire has an answer to, and `--help=page` goes
through a pager. `--show-config` prints each value with where it comes from, as a file that `--config` takes.

This page is made by `make docs` from the declarations in `quire/options/`.
"""


def options_page() -> str:
    """The page as Markdown: one section per option group, naming the commands that take it."""
    sections: dict[str, tuple[list[str], OptionGroup]] = {}
    for name, command in all_commands():
        if isinstance(command, OptionsCommand):
            for group in command.sections():
                sections.setdefault(group.title, ([], group))[0].append(f"`quire {name}`")
    return _HEAD + "".join(_section(*content) for content in sections.values())


def _section(commands: list[str], group: OptionGroup) -> str:
    rows = "".join(
        f"| `{'`, `'.join([*field.metadata['aliases'], field.flag])}` | {_default(field)} | {_describe(field)} |\n"
        for field in group.fields
    )
    takers = f"`{group.name}`, taken by {', '.join(commands)}."
    return f"\n## {group.title}\n\n{takers}\n\n| flag | default | meaning |\n|---|---|---|\n{rows}"


def _default(field: OptionField) -> str:
    if isinstance(field.default, bool):
        return "on" if field.default else "off"
    default = " ".join(map(str, field.default)) if field.multiple else field.default
    return f"`{default}`" if default not in (None, "", {}) else ""


def _describe(field: OptionField) -> str:
    choices = field.metadata["choices"]
    suffix = f" One of {', '.join(f'`{choice}`' for choice in choices if choice)}." if choices else ""
    deprecated = f" Deprecated: {field.metadata['deprecated']}" if field.metadata["deprecated"] else ""
    variables = "".join(f" Also by the variable `{name}`." for name in field.metadata["variables"])
    return str(field.metadata["help"]).replace("|", "\\|") + suffix + variables + deprecated


if __name__ == "__main__":
    print(options_page(), end="")
