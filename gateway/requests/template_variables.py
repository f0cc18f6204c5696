"""What chat templates are told of a request, beside its messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quire.errors import InvalidRequest
from quire.options.reasoning import REASONING_EFFORTS

# Turns thinking on and off in templates that have a switch for it.
THINKING_SWITCH = "enable_thinking"


def template_variables(
    kwargs: Mapping[str, Any] | None,
    reasoning_effort: str | None,
    default_effort: str,
    documents: Sequence[Mapping[str, str]] | None = None,
) -> Mapping[str, Any]:
    """The variables, of which those that the request names itself win.

    An effort that is asked for also turns thinking on, or off for `none`, in templates that have a switch for it. The
    server's own says how much to think and not whether.

    Args:
        default_effort: the server's; empty leaves it to the template.

    Raises:
        InvalidRequest: there is no such effort.
    """
    given = ({"documents": documents} if documents else {}) | dict(kwargs or {})
    if reasoning_effort is None:
        return {"reasoning_effort": default_effort, **given} if default_effort else given
    if reasoning_effort not in REASONING_EFFORTS:
        raise InvalidRequest(
            f"reasoning_effort is {reasoning_effort[:50]!r}; it must be one of {', '.join(REASONING_EFFORTS)}.",
            parameter="reasoning_effort",
        )
    return {"reasoning_effort": reasoning_effort, THINKING_SWITCH: reasoning_effort != "none", **given}
