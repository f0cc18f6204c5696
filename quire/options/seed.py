"""An option shared by two services, so that `quire serve` passes it to both."""

from __future__ import annotations

from typing import Any

from quire.options.base import option


def seed_option() -> Any:
    """Declares --seed, an integer or None."""
    return option(
        None,
        "Requests without a seed get seeds from a sequence that starts with this one: the same requests in the same "
        "order give the same tokens after each start. A gateway draws seeds for all requests through it (give replicas "
        "different seeds), an engine for those sent to it directly; dummy weights are drawn from it too. Default: "
        "random (dummy weights: 0).",
        minimum=0,
    )
