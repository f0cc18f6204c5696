"""The help of a command: all its options, those of a group, a single one, or those that contain a word.

Each entry has the option's purpose, its default and its environment variables. In addition to the command's own
options, `--help=all` and searches for a group or word show the flags of vLLM that Quire has an answer to.
"""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from quire.options.base import OptionField, OptionGroup
from quire.options.nearest import nearest
from quire.options.vllm.answer import Answer
from quire.options.vllm.answers import ANSWERS, SHORT_NAMES
from quire.options.vllm.flags import vllm_flags
from quire.options.vllm.translation import answer_to

# Words after `--help=` with a special meaning.
LIST_GROUPS, ALL, PAGE = "listgroup", "all", "page"
_MOST_COLUMNS = 120
_NAMES_COLUMNS = 34


@dataclass(frozen=True)
class Entry:
    """One flag as shown in help."""

    name: str  # with leading dashes
    names: str  # all its names, and the placeholder of its value
    text: str


@dataclass(frozen=True)
class HelpGroup:
    """Entries under a title."""

    name: str
    title: str
    entries: Sequence[Entry]


class Help:
    """The help of one command."""

    def __init__(self, usage: str, about: str, groups: Sequence[OptionGroup], defaults: Mapping[str, Any]) -> None:
        """
        Args:
            defaults: option name → default in this command, if it differs from the option's.
        """
        self._head = f"Usage: {usage}\n\n  {about}\n"
        self._own = [
            HelpGroup(
                group.name,
                group.title,
                [entry_of(field, defaults.get(field.name, field.default)) for field in group.fields],
            )
            for group in groups
        ]
        self._flags = [entry.name for group in self._own for entry in group.entries]

    def text(self, word: str) -> str:
        """The output of `--help=word`; the word may be empty."""
        asked = word.strip().lower()
        if asked in ("", PAGE):
            return self._head + _TO_ASK + _shown(self._own)
        if asked == ALL:
            return self._head + _shown(self._all())
        if asked == LIST_GROUPS:
            return "".join(
                f"{group.name:{_NAMES_COLUMNS}}{group.title} ({len(group.entries)})\n" for group in self._all()
            )
        return self._about(asked) or self._found(asked) or self._nothing(word)

    def words(self) -> list[str]:
        """The words that may be asked for, for shell completion."""
        return [LIST_GROUPS, ALL, PAGE, *(group.name for group in self._all()), *(flag[2:] for flag in self._flags)]

    def _about(self, asked: str) -> str:
        """The help of a flag or group with exactly this name."""
        groups = [group for group in self._all() if asked in (group.name.lower(), group.title.lower())]
        name = SHORT_NAMES.get(f"-{asked}", asked.replace("_", "-"))
        alone = [
            HelpGroup(group.name, group.title, [entry])
            for group in self._all() for entry in group.entries if entry.name == f"--{name}"
        ]  # fmt: skip
        return _shown(groups or alone)

    def _found(self, asked: str) -> str:
        matching = [
            HelpGroup(
                group.name, group.title,
                [entry for entry in group.entries if asked in f"{entry.names} {entry.text}".lower()],
            )
            for group in self._all()
        ]  # fmt: skip
        return _shown([group for group in matching if group.entries])

    def _nothing(self, word: str) -> str:
        names = [*(group.name for group in self._all()), *(flag[2:] for flag in self._flags)]
        return f"No option contains {word!r}.{nearest(word, names)} --help=listgroup shows the groups.\n"

    def _all(self) -> list[HelpGroup]:
        """The groups, including answered flags of vLLM; groups of the same name are merged."""
        titles: dict[str, str] = {}
        entries: dict[str, list[Entry]] = {}
        for group in self._own:
            titles[group.name] = f"{titles[group.name]}; {group.title}" if group.name in titles else group.title
            entries.setdefault(group.name, []).extend(group.entries)
        for group_name, entry in self._answered():
            titles.setdefault(group_name, "vLLM options that are not options of Quire")
            entries.setdefault(group_name, []).append(entry)
        return [HelpGroup(name, titles[name], entries[name]) for name in entries]

    def _answered(self) -> Iterator[tuple[str, Entry]]:
        known = vllm_flags()
        for name in ANSWERS:
            if name in known and (answer := answer_to(name, self._flags)):
                yield known[name].group, _answered_entry(name, answer, known[name].current)


_TO_ASK = """
  --help=listgroup lists the groups, --help=GROUP and --help=OPTION show one, --help=WORD searches for a word,
  --help=page uses a pager, and --help=all also shows vLLM options that Quire does not have.
"""


def entry_of(field: OptionField, default: object) -> Entry:
    """The help entry of an option."""
    flag = f"{field.flag}/--no-{field.flag[2:]}" if field.type is bool else field.flag
    names = ", ".join([*field.metadata["aliases"], flag])
    return Entry(field.flag, f"{names} {_placeholder(field)}".rstrip(), " ".join(_sentences(field, default)))


def _placeholder(field: OptionField) -> str:
    if field.type is bool:
        return ""
    named = {int: "INTEGER", float: "NUMBER", dict: "JSON"}.get(field.type, "TEXT")
    choices = [choice for choice in field.metadata["choices"] if choice]
    shown: str = field.metadata["metavar"] or (f"[{'|'.join(choices)}]" if choices else named)
    return f"[{shown}]" if field.metadata["bare"] else shown


def _sentences(field: OptionField, default: object) -> Iterator[str]:
    metadata = field.metadata
    if metadata["deprecated"]:
        yield f"(DEPRECATED) {metadata['deprecated']}"
    yield metadata["help"]
    if not metadata["secret"] and not (default is None and "efault" in metadata["help"]):
        yield f"[default: {shown_value(default, field)}]"
    yield f"[env: {', '.join(field.environment_variables)}]"


def shown_value(value: object, field: OptionField) -> str:
    """An option's value in readable form."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if field.multiple and isinstance(value, (list, tuple)):
        return " ".join(map(str, value)) or "none"
    return "none" if value in (None, "", {}) else str(value)


def _answered_entry(name: str, answer: Answer, current: bool) -> Entry:
    short = [alias for alias, long_name in SHORT_NAMES.items() if long_name == name]
    superseded = "" if current else "(DEPRECATED in vLLM) "
    return Entry(f"--{name}", ", ".join([*short, f"--{name}"]), f"{superseded}Not an option of Quire. {answer.said}")


def _shown(groups: Sequence[HelpGroup]) -> str:
    columns = min(shutil.get_terminal_size().columns, _MOST_COLUMNS)
    lines = []
    for group in groups:
        lines += ["", f"{group.name}: {group.title}"]
        for entry in group.entries:
            lines += _entry_lines(entry, max(columns, _NAMES_COLUMNS + 30))
    return "\n".join([*lines, ""]) if groups else ""


def _entry_lines(entry: Entry, columns: int) -> list[str]:
    indent = " " * _NAMES_COLUMNS
    fits = len(entry.names) < _NAMES_COLUMNS - 3
    first = f"  {entry.names:{_NAMES_COLUMNS - 2}}" if fits else indent
    wrapped = textwrap.wrap(
        entry.text, columns, initial_indent=first, subsequent_indent=indent, break_on_hyphens=False,
        break_long_words=False,
    )  # fmt: skip
    return wrapped if fits else [f"  {entry.names}", *wrapped]


def print_help(text: str, paged: bool) -> None:
    """Prints the text, through a pager if requested and on a terminal."""
    if paged:
        click.echo_via_pager(text.rstrip("\n") + "\n")
    else:
        click.echo(text.rstrip("\n"))
