"""The request as it is sent to a worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quire.v1 import common_pb2


@dataclass(frozen=True, slots=True)
class ChoiceProgress:
    """The tokens of one of a request's sequences so far."""

    token_ids: Sequence[int]
    finished: bool


@dataclass(frozen=True, slots=True)
class Assignment:
    """A caller's request, which is never modified, and the values with which the router overrides parts of it."""

    generation: common_pb2.Generation
    # The model's own name; the caller may have used an alias.
    model: str
    # The caller's seed, or one drawn by the router, so that another worker continues with the same noise.
    seed: int
    # What workers of this router have generated, one entry for each sequence; None means the progress that the caller
    # sent.
    progress: Sequence[ChoiceProgress] | None = None
    # Address of this router's worker that has computed the prompt and keeps its KV blocks; empty if none does. Another
    # deployment's worker is in `generation`.
    kv_source: str = ""
    # For each image, the address of the worker that encodes it; empty if the worker encodes them itself.
    encoders: Sequence[str] = ()
