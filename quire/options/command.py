"""A click command made from option dataclasses: flags, environment, config file, grouped and searchable help."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click
from click.core import ParameterSource

from quire.options.base import ENVIRONMENT_PREFIX, OptionField, OptionGroup, build, fields_of, groups_of
from quire.options.config_file import load_config_file
from quire.options.inventory import REASONS, UNIMPLEMENTED
from quire.options.parameter import repeat_flag
from quire.options.parsing import click_option
from quire.options.spelling import spell_out
from quire.options.superseded import check_superseded

_OWN_NAMES = ("--config", "QUIRE_CONFIG", "-h", "--help")


class OptionsCommand(click.Command):
    """Parses the options of several dataclasses and hands one instance of each to `run`."""

    def __init__(
        self,
        name: str,
        help: str,
        groups: Mapping[str, type],
        run: Callable[..., None],
        defaults: Mapping[str, Any] | None = None,
    ) -> None:
        """
        Args:
            groups: keyword of `run` → dataclass of options. An option that two declare alike is one.
            defaults: option name → default of this command, where it differs from the dataclass's.
        """
        self._groups = groups
        self._run = run
        self._sections = _sections([group for cls in groups.values() for group in groups_of(cls)])
        self._fields = {field.name: field for section in self._sections for field in section.fields}
        super().__init__(name, help=help, params=self._parameters(), callback=self._invoke, add_help_option=False)
        self._defaults = dict(defaults or {})

    def sections(self) -> Sequence[OptionGroup]:
        """The groups with their options, each option once."""
        return self._sections

    def _parameters(self) -> list[click.Parameter]:
        parameters: list[click.Parameter] = [
            click.Option(["--config"], help="YAML file of options.", is_eager=True, expose_value=False,
                         callback=self._read_config, envvar="QUIRE_CONFIG", metavar="FILE"),
            click.Option(["-h", "--help"], is_flag=False, flag_value="", is_eager=True, expose_value=False,
                         callback=self._show_help, metavar="[WORD]",
                         help="Shows the options, or those with WORD in them (--help=max)."),
        ]  # fmt: skip
        for field in self._fields.values():
            parameters.append(click_option(field))
            if field.metadata["positional"]:
                parameters.append(click.Argument([f"{field.name}_argument"], required=False, metavar="[MODEL]"))
        return parameters

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Makes the command's own defaults known below environment and config file."""
        kwargs.setdefault("default_map", {}).update(self._defaults)
        return super().make_context(*args, **kwargs)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Refuses flags that vLLM has and Quire has not with a message that says so, and such variables."""
        variables = {
            name.removeprefix(ENVIRONMENT_PREFIX).lower(): value
            for name, value in sorted(os.environ.items())
            if name.startswith(ENVIRONMENT_PREFIX) and value
        }
        for name in variables:
            self._check_implemented(name, ENVIRONMENT_PREFIX + name.upper(), ctx)
        args = spell_out(args, [field.flag for field in self._fields.values() if field.type is dict])
        for field in self._fields.values():
            if following := field.metadata["following"]:
                args = repeat_flag(args, field.flag, following)
        if "speculative_config" in self._fields:
            check_superseded(args, variables)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            self._check_implemented(error.option_name.lstrip("-").removeprefix("no-"), error.option_name, ctx)
            raise

    def _check_implemented(self, name: str, shown: str, ctx: click.Context) -> None:
        if name.replace("_", "-") in UNIMPLEMENTED and name.replace("-", "_") not in self._fields:
            reason = REASONS.get(name.replace("_", "-"), "Leave it out.")
            raise click.UsageError(f"{shown} is an option of vLLM that Quire does not implement. {reason}", ctx)

    def _read_config(self, ctx: click.Context, parameter: click.Parameter, path: str | None) -> None:
        if path:
            values = load_config_file(path, self._fields)
            for name, value in values.items():
                if self._fields[name].multiple and not isinstance(value, list):
                    values[name] = [value]  # one value needs no brackets
            ctx.default_map = {**(ctx.default_map or {}), **values}

    def _show_help(self, ctx: click.Context, parameter: click.Parameter, word: str | None) -> None:
        if word is None:
            return
        formatter = ctx.make_formatter()
        if not word:
            formatter.write_usage(ctx.command_path, "[MODEL] [OPTIONS]" if "model" in self._fields else "[OPTIONS]")
            formatter.write_paragraph()
            formatter.write_text(self.help or "")
        for section in self._sections:
            rows = [self._help_row(ctx, field) for field in section.fields]
            shown = [row for row in rows if row and word.lower() in " ".join(row).lower()]
            if shown:
                with formatter.section(section.title):
                    formatter.write_dl(shown)
        click.echo(formatter.getvalue().rstrip() or f"No option has {word!r} in it.")
        ctx.exit()

    def _help_row(self, ctx: click.Context, field: OptionField) -> tuple[str, str] | None:
        return next(p for p in self.params if p.name == field.name and isinstance(p, click.Option)).get_help_record(ctx)

    def _invoke(self, **values: Any) -> None:
        for name, field in self._fields.items():
            if field.metadata["positional"]:
                argument = values.pop(f"{name}_argument")
                source = click.get_current_context().get_parameter_source(name)
                if argument and source is ParameterSource.COMMANDLINE and values[name] != argument:
                    raise click.UsageError(f"{field.flag} {values[name]} and {argument}: name one model.")
                values[name] = argument or values[name]
        self._run(**{
            keyword: build(cls, {field.name: values[field.name] for field in fields_of(cls)})
            for keyword, cls in self._groups.items()
        })  # fmt: skip


def _sections(groups: Sequence[OptionGroup]) -> list[OptionGroup]:
    """The groups, each option once: one that several declare alike stays with the first.

    Raises:
        ValueError: two options that are not the same have a name in common.
    """
    owners: dict[str, OptionField | None] = dict.fromkeys(_OWN_NAMES)
    sections = []
    for group in groups:
        new = [field for field in group.fields if owners.get(field.flag) != field]
        for field in new:
            if taken := owners.keys() & field.names:
                raise ValueError(f"{min(taken)} of {group.name} is another option's too")
            owners.update(dict.fromkeys(field.names, field))
        sections.append(dataclasses.replace(group, fields=new))
    return [section for section in sections if section.fields]
