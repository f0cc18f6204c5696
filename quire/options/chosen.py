"""`--show-config`: shows the values of a command's options, and the source of each."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import click
from click.core import ParameterSource

from quire.options.base import OptionField, OptionGroup

_HIDDEN = "(hidden)"


def config_lines(
    groups: Iterable[OptionGroup], values: Mapping[str, Any], of_file: Collection[str], ctx: click.Context
) -> Iterator[str]:
    """Lines of a YAML file with all values, usable as --config; each line names the source of its value.

    Args:
        of_file: names of the options set by this start's config file.
    """
    for group in groups:
        yield f"# {group.name}: {group.title}"
        for field in group.fields:
            source = _source(field, of_file, ctx)
            value = values[field.name]
            text = json.dumps(list(value) if field.multiple else value, ensure_ascii=False)
            comment = "# " if field.metadata["secret"] else ""
            shown = _HIDDEN if field.metadata["secret"] and value else text
            line = f"{comment}{field.flag[2:]}: {shown}"
            yield f"{line:<60}  # {source}"


def _source(field: OptionField, of_file: Collection[str], ctx: click.Context) -> str:
    sources = [ctx.get_parameter_source(name) for name in (field.name, f"{field.name}_argument")]
    if ParameterSource.COMMANDLINE in sources:
        return "command line"
    if ParameterSource.ENVIRONMENT in sources:
        set_ones = [name for name in field.environment_variables if os.environ.get(name)]
        return f"environment ({', '.join(set_ones[:1])})"
    if field.name in of_file:
        return "file"
    return "default"
