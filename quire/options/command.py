"""A click command built from option dataclasses: flags, environment, config file, grouped and searchable help."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from quire.options.base import ANY_WORD, OptionField, OptionGroup, build, fields_of, groups_of
from quire.options.config_file import load_config_file
from quire.options.environment import heed_variables
from quire.options.nearest import nearest_with_meaning
from quire.options.parameter import repeat_flag
from quire.options.parsing import click_option
from quire.options.spelling import spell_out, spell_out_levels
from quire.options.vllm.compilation import FLAG as COMPILATION
from quire.options.vllm.objects import TRANSLATED
from quire.options.vllm.translation import say, translate
from quire.supervised import supervised_name

if TYPE_CHECKING:
    from quire.options.help import Help

_OWN_NAMES = ("--config", "QUIRE_CONFIG", "-h", "--help", "--show-config")
_OF_FILE = "quire.options.of_file"  # key in click's context metadata: names of the options set by the config file


class OptionsCommand(click.Command):
    """Parses the options of several dataclasses and passes one instance of each to `run`."""

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
            groups: keyword argument of `run` → options dataclass. An option declared identically by two of them is one
                option.
            defaults: option name → default in this command, if it differs from the dataclass's.
        """
        self.groups = groups
        self._run = run
        self._sections = _sections([group for cls in groups.values() for group in groups_of(cls)])
        self._fields = {field.name: field for section in self._sections for field in section.fields}
        super().__init__(name, help=help, params=self._parameters(), callback=self._invoke, add_help_option=False)
        self._defaults = dict(defaults or {})

    def sections(self) -> Sequence[OptionGroup]:
        """The groups with their options, each option in one group only."""
        return self._sections

    def _parameters(self) -> list[click.Parameter]:
        parameters: list[click.Parameter] = [
            click.Option(["--config"], help="YAML file of options.", is_eager=True, expose_value=False,
                         callback=self._read_config, envvar="QUIRE_CONFIG", metavar="FILE"),
            click.Option(["-h", "--help"], is_flag=False, flag_value="", is_eager=True, expose_value=False,
                         callback=self._show_help, metavar="[WORD]", shell_complete=self._complete_help,
                         help="Shows the options, or those that contain WORD (--help=max)."),
            click.Option(["--show-config"], is_flag=True, help="Shows all values and their sources, and exits."),
        ]  # fmt: skip
        for field in self._fields.values():
            parameters.append(click_option(field))
            if field.metadata["positional"]:
                parameters.append(click.Argument([f"{field.name}_argument"], required=False, metavar="[MODEL]"))
        return parameters

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Applies the command's own defaults, which environment and config file override."""
        kwargs.setdefault("default_map", {}).update(self._defaults)
        return super().make_context(*args, **kwargs)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Accepts vLLM's flags and spellings, and reports what differs here; see `quire.options.vllm`."""
        args = self._translated(args, _say_nothing if ctx.resilient_parsing else say)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            meanings = {field.flag: field.metadata["help"] for field in self._fields.values()}
            hint = nearest_with_meaning(error.option_name, meanings)
            raise click.UsageError(f"No such option: {error.option_name}.{hint}", ctx) from error

    def _translated(self, arguments: Sequence[str], tell: Callable[[str], None]) -> list[str]:
        """Translates the arguments to those that click parses."""
        flags = [field.flag for field in self._fields.values()]
        objects = [field.flag for field in self._fields.values() if field.has_keys]
        spelled = spell_out(spell_out_levels(arguments), [COMPILATION, *TRANSLATED])
        spelled = spell_out(translate(spelled, flags, tell), objects)
        names_model = self._names_model(arguments)
        for field in self._fields.values():
            if following := _following(field, names_model) if field.multiple else "":
                spelled = repeat_flag(spelled, field.flag, following)
        return spelled

    def _names_model(self, arguments: Sequence[str]) -> bool:
        """Whether words after a flag cannot be the positional argument: it was given before, or the command has
        none."""
        flags = [field.flag for field in self._fields.values() if field.metadata["positional"]]
        first = arguments[0] if arguments else "-"
        return not flags or not first.startswith("-") or any(word.partition("=")[0] in flags for word in arguments)

    def _read_config(self, ctx: click.Context, parameter: click.Parameter, path: str | None) -> None:
        if path:
            values = load_config_file(path, self._fields, _say_nothing if ctx.resilient_parsing else say)
            for name, value in values.items():
                if self._fields[name].multiple and not isinstance(value, list):
                    values[name] = [value]  # a single value needs no brackets
            ctx.default_map = {**(ctx.default_map or {}), **values}
            ctx.meta[_OF_FILE] = frozenset(values)

    def _show_help(self, ctx: click.Context, parameter: click.Parameter, word: str | None) -> None:
        if word is None or ctx.resilient_parsing:
            return
        # Hundreds of entries, built only when needed.
        from quire.options.help import PAGE, print_help

        print_help(self._help(ctx).text(word), word == PAGE)
        ctx.exit()

    def _help(self, ctx: click.Context) -> Help:
        from quire.options.help import Help

        usage = f"{ctx.command_path} {'[MODEL] [OPTIONS]' if 'model' in self._fields else '[OPTIONS]'}"
        return Help(usage, self.help or "", self._sections, self._defaults)

    def _complete_help(self, ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
        return [word for word in self._help(ctx).words() if word.lower().startswith(incomplete.lower())]

    def _show_config(self, ctx: click.Context, values: Mapping[str, Any]) -> None:
        from quire.options.chosen import config_lines

        of_file = ctx.meta.get(_OF_FILE, frozenset())
        click.echo("\n".join(config_lines(self._sections, values, of_file, ctx)))

    def _invoke(self, **values: Any) -> None:
        for name, field in self._fields.items():
            if field.metadata["positional"]:
                argument = values.pop(f"{name}_argument")
                source = click.get_current_context().get_parameter_source(name)
                if argument and source is ParameterSource.COMMANDLINE and values[name] != argument:
                    raise click.UsageError(
                        f"{field.flag} {values[name]} and {argument} name two models. Name only one."
                    )
                values[name] = argument or values[name]
        ctx = click.get_current_context()
        tell = _say_nothing if supervised_name() else say
        heed_variables(os.environ, self._fields, lambda: _known_variables(ctx), tell)
        if values.pop("show_config"):
            self._show_config(ctx, values)
            return
        self._run(**{
            keyword: build(cls, {field.name: values[field.name] for field in fields_of(cls)})
            for keyword, cls in self.groups.items()
        })  # fmt: skip


def _sections(groups: Sequence[OptionGroup]) -> list[OptionGroup]:
    """The groups with each option once: one declared identically in several groups stays in the first.

    Raises:
        ValueError: two different options share a name.
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


def _following(field: OptionField, names_model: bool) -> str:
    """The pattern of words that are further values after an option's first; empty if they could be the model."""
    if field.metadata["following"]:
        return str(field.metadata["following"])
    if field.type is int:
        return r"\d+[kmgKMG]?$"
    return ANY_WORD if names_model else ""


def _known_variables(ctx: click.Context) -> set[str]:
    """Names of the environment variables of all commands."""
    return {name for command in _commands(ctx.find_root().command, ctx) for name in _variables(command)}


def _commands(command: click.Command, ctx: click.Context) -> Iterator[click.Command]:
    yield command
    if isinstance(command, click.Group):
        for name in command.list_commands(ctx):
            if (inner := command.get_command(ctx, name)) is not None:
                yield from _commands(inner, ctx)


def _variables(command: click.Command) -> Iterator[str]:
    for parameter in command.params:
        yield from [parameter.envvar] if isinstance(parameter.envvar, str) else parameter.envvar or ()


def _say_nothing(line: str) -> None:
    """Discards messages, for commands started by a supervisor, which has printed them itself, and for shell
    completion."""
