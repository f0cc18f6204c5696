"""Variables passed to chat templates, besides the messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quire.errors import InvalidRequest
from quire.options.reasoning import REASONING_EFFORTS

# Template variable that turns thinking on and off, in templates that have such a switch.
THINKING_SWITCH = "enable_thinking"


def template_variables(
    kwargs: Mapping[str, Any] | None,
    reasoning_effort: str | None,
    default_effort: str,
    documents: Sequence[Mapping[str, str]] | None = None,
) -> Mapping[str, Any]:
    """Returns the variables; those that the request sets explicitly take precedence.

    A requested effort also turns thinking on, or off for `none`, in templates with a switch for it. The server's
    default effort says only how much to think, not whether.

    Args:
        default_effort: the server's; empty leaves it to the template.

    Raises:
        InvalidRequest: the effort is unknown.
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
