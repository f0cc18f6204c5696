"""Translates vLLM's arguments to Quire's, and reports those that act as another option or have no effect."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence

import click

from quire.options.vllm.answer import Answer, Kind
from quire.options.vllm.answers import ANSWERS, SHORT_NAMES
from quire.options.vllm.compilation import FLAG as COMPILATION
from quire.options.vllm.compilation import as_options
from quire.options.vllm.objects import TRANSLATED, arguments_of

_QUIET = "VLLM_NO_DEPRECATION_WARNING"


def say(line: str) -> None:
    """Prints a warning for the user who starts the command."""
    click.echo(f"warning: {line}", err=True)


def answer_to(name: str, own: Collection[str]) -> Answer | None:
    """The answer to a flag, by its name without leading dashes; None for the command's own options and unknown flags.

    Args:
        own: flags of the command's options.
    """
    answer = ANSWERS.get(name.partition(".")[0])
    if answer is None or f"--{name}" in own:
        return None
    if answer.kind is Kind.ACTS_AS and answer.successor.partition(".")[0].replace("--no-", "--") not in own:
        return None  # the command does not have that option either
    return answer


def translate(arguments: Sequence[str], own: Collection[str], tell: Callable[[str], None]) -> list[str]:
    """Translates vLLM's flags among the arguments to the command's own; expands short names.

    Args:
        own: flags of the command's options.
        tell: called with a line for each flag that is translated, or has no effect.

    Raises:
        click.UsageError: a flag is refused.
    """
    successors: list[str] = []
    rest: list[str] = []
    words = iter(enumerate(arguments, 1))
    for following, word in words:
        if word == "--":
            return [*successors, *rest, *arguments[following - 1 :]]
        flag, equals, value = word.partition("=")
        name = flag[2:] if flag.startswith("--") else _long_name(flag)
        answer = answer_to(name, own)
        if _turns_off(name, own):
            continue
        if answer is None:
            is_short = f"--{name.partition('.')[0]}" in own and not flag.startswith("--")
            rest.append(f"--{name}{equals}{value}" if is_short else word)
            continue
        if not equals and not answer.switch:
            value = next(words)[1] if _is_value(arguments[following : following + 1]) else "true"
        successors += heed(answer, flag, name, value, tell)
    return [*successors, *rest]


def _long_name(flag: str) -> str:
    """The name for a short one, whose object may be followed by a key (`-sc.method`); empty if there is none."""
    head, dot, key = flag.partition(".")
    return f"{SHORT_NAMES[head]}{dot}{key}" if head in SHORT_NAMES else ""


def _turns_off(name: str, own: Collection[str]) -> bool:
    """Whether the name is `no-` plus a switch that is off anyway."""
    answer = answer_to(name.removeprefix("no-"), own) if name.startswith("no-") and f"--{name}" not in own else None
    return answer is not None and (answer.kind is not Kind.ACTS_AS or answer.switch)


def _is_value(words: Sequence[str]) -> bool:
    """Whether the first word is a value rather than a flag."""
    return bool(words) and (not words[0].startswith("-") or words[0][1:].isdigit())


def heed(answer: Answer, shown: str, name: str, value: str, tell: Callable[[str], None]) -> list[str]:
    """The arguments that replace a flag with its value.

    Raises:
        click.UsageError: the flag is refused.
    """
    if value in answer.taken:
        return []
    if answer.kind is Kind.REFUSED:
        raise click.UsageError(answer.refusal(shown))
    if answer.kind is Kind.NO_EFFECT:
        tell(f"{shown} has no effect. {answer.text}")
        return []
    if f"--{name}" == COMPILATION:
        return _compilation(shown, value, tell)
    if f"--{name}" in TRANSLATED:
        return _object(f"--{name}", shown, value, tell)
    if not os.environ.get(_QUIET):
        tell(f"{shown} acts as {' '.join(_successor(answer, '…'))}. {answer.text}".rstrip())
    return list(_successor(answer, value))


def _successor(answer: Answer, value: str) -> Iterator[str]:
    yield answer.successor
    if answer.fixed != "":
        yield value if answer.fixed is None else answer.fixed


def _object(flag: str, shown: str, value: str, tell: Callable[[str], None]) -> list[str]:
    if arguments := arguments_of(flag, value):
        tell(f"{shown} acts as {' '.join(arguments)}.")
    return arguments


def _compilation(shown: str, value: str, tell: Callable[[str], None]) -> list[str]:
    arguments, idle = as_options(value)
    if arguments:
        tell(f"{shown} acts as {' '.join(arguments)}.")
    if idle:
        tell(
            f"{shown}: {', '.join(idle)} {'has' if len(idle) == 1 else 'have'} no effect, because Quire does not use "
            "torch.compile."
        )
    return arguments
