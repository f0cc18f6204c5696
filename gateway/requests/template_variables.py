"""Variables passed to chat templates, besides the messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quire.errors import InvalidRequest
from quire.options.reasoning import REASONING_EFFORTS
from quire.reasoning import EFFORT, THINKING_SWITCHES


def template_variables(
    kwargs: Mapping[str, Any] | None,
    reasoning_effort: str | None,
    server_effort: str | None,
    documents: Sequence[Mapping[str, str]] | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> Mapping[str, Any]:
    """Returns the variables that the request and the operator set; the request's take precedence.

    A requested effort also turns thinking on, or off for `none`, in templates with a switch for it, unless the request
    sets such a switch. The operator's says only how much to think, not whether.

    Args:
        server_effort: the operator's; without one, or if it is empty, none is set.
        defaults: the server's for all other variables.

    Raises:
        InvalidRequest: the effort is unknown.
    """
    given = ({"documents": documents} if documents else {}) | dict(kwargs or {})
    switch = switch_of(given)
    usual = {name: value for name, value in (defaults or {}).items() if switch is None or name not in THINKING_SWITCHES}
    if reasoning_effort is None:
        return ({EFFORT: server_effort} if server_effort else {}) | usual | given
    if reasoning_effort not in REASONING_EFFORTS:
        raise InvalidRequest(
            f"reasoning_effort is {reasoning_effort[:50]!r}; it must be one of {', '.join(REASONING_EFFORTS)}.",
            parameter="reasoning_effort",
        )
    on = reasoning_effort != "none" if switch is None else bool(switch)
    return usual | {EFFORT: reasoning_effort} | thinking_switched(on) | given


def thinking_switched(on: bool) -> dict[str, Any]:
    """Returns the variables that turn thinking on or off."""
    return dict.fromkeys(THINKING_SWITCHES, on)


def switch_of(variables: Mapping[str, Any]) -> Any:
    """Returns the value of the first switch among the variables; None if there is none."""
    return next((variables[name] for name in THINKING_SWITCHES if variables.get(name) is not None), None)
