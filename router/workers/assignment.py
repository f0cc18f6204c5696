"""What a worker gets of a request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quire.v1 import common_pb2


@dataclass(frozen=True, slots=True)
class ChoiceProgress:
    """How far one of a request's sequences has come."""

    token_ids: Sequence[int]
    finished: bool


@dataclass(frozen=True, slots=True)
class Assignment:
    """A request as its caller sent it, which nobody writes to, and what the router says in place of that."""

    generation: common_pb2.Generation
    # The model's own name, where the caller may have used an alias.
    model: str
    # The caller's, or the one that the router drew: another worker goes on with the same noise.
    seed: int
    # What workers of this router have generated, one entry for each sequence; None while that is what the caller sent.
    progress: Sequence[ChoiceProgress] | None = None
