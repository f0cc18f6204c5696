"""An option shared by two services, so that `quire serve` passes it to both."""

from __future__ import annotations

from typing import Any

from quire.options.base import option


def seed_option() -> Any:
    """Declares --seed, an integer or None."""
    return option(
        None,
        "Requests that bring no seed get those of a sequence that begins with this one: the same requests in the same "
        "order give the same tokens after each start. A gateway draws for all that come through it (give replicas "
        "different ones), an engine for those that are sent to itself, and dummy weights are drawn from it too. "
        "Default: at random (dummy weights: 0).",
        minimum=0,
    )
