"""Checks the environment variables of a command that is about to start, and reports those without effect."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping

import click

from quire.options.base import ENVIRONMENT_PREFIX, OptionField
from quire.options.nearest import nearest, nearest_name
from quire.options.vllm.answer import Kind
from quire.options.vllm.translation import answer_to
from quire.options.vllm.variables import READ_ELSEWHERE, WITHOUT_EFFECT, value_of, why_without_effect

_VLLM = "VLLM_"
# Variables that Kubernetes sets in every pod when a service is called `quire` or `vllm`, or that plus a dash and more.
_OF_KUBERNETES = re.compile(r"(QUIRE|VLLM)_(.*_)?(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT(_\d+_(TCP|UDP|SCTP)(_.*)?)?)")
# Variables that are not options: the supervisor's, and compose.yaml's.
_OTHERS = re.compile(r"QUIRE_(SUPERVIS.*|CONFIG|MODEL_DIR|MODEL_NAME|BIND|ENGINES|TENSOR_PARALLEL)")


def heed_variables(
    environment: Mapping[str, str],
    fields: Mapping[str, OptionField],
    known: Callable[[], Collection[str]],
    tell: Callable[[str], None],
) -> None:
    """Reports the variables that stand for an option under vLLM's name, and those without effect.

    Args:
        fields: the command's options by name.
        known: names of the variables of all commands.
        tell: called with each line.

    Raises:
        click.UsageError: a variable is named like a flag of vLLM that Quire refuses.
    """
    given = {name: value for name, value in sorted(environment.items()) if value}
    for name in given:
        if name.startswith(ENVIRONMENT_PREFIX):
            _check_own(name, given[name], fields, known, tell)
    if "model" not in fields:
        return  # it starts nothing that vLLM's variables would apply to
    for field in fields.values():
        for name in field.metadata["variables"]:
            if field.environment_variable not in given and value_of(name, given):
                tell(f"{name} is read as {field.environment_variable}.")
    others = []
    for name in given:
        if why := why_without_effect(name):
            tell(f"{name} has no effect. {why}")
        elif name.startswith(_VLLM) and name not in READ_ELSEWHERE and not _OF_KUBERNETES.fullmatch(name):
            others.append(name)
    if others:
        _report_unknown(others, known(), tell)


def _report_unknown(given: Iterable[str], read: Collection[str], tell: Callable[[str], None]) -> None:
    """Reports in one line the variables named like vLLM's that no command reads."""
    names = {name.removeprefix(_VLLM): name for name in (*read, *WITHOUT_EFFECT) if name.startswith(_VLLM)}
    similar = {name: nearest_name(name.removeprefix(_VLLM), names) for name in given if name not in read}
    shown = [f"{name} (did you mean {names[close]}?)" if close else name for name, close in similar.items()]
    if shown:
        tell(f"Not known to Quire, and without effect: {', '.join(shown)}.")


def _check_own(
    name: str, value: str, fields: Mapping[str, OptionField], known: Callable[[], Collection[str]],
    tell: Callable[[str], None],
) -> None:  # fmt: skip
    option = name.removeprefix(ENVIRONMENT_PREFIX).lower()
    if option in fields or _OTHERS.fullmatch(name) or _OF_KUBERNETES.fullmatch(name):
        return
    own = [field.flag for field in fields.values()]
    if (answer := answer_to(option.replace("_", "-"), own)) and value not in answer.taken:
        if answer.kind is not Kind.NO_EFFECT:
            raise click.UsageError(answer.refusal(name))
        tell(f"{name} has no effect. {answer.text}")
    elif answer is None and name not in (names := known()):
        tell(f"{name} is not an option of Quire and has no effect.{nearest(name, names)}")
