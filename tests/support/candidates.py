"""Made-up workers as placement sees them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from router.placement.policies.base import Candidates
from router.workers.base import hash_of
from router.workers.load_table import Figures
from router.workers.speed import DEFAULT_SECONDS_PER_STEP, DEFAULT_SECONDS_PER_TOKEN


@dataclass(frozen=True)
class Candidate:
    """One worker; see Candidates and router/workers/load_table.py."""

    address: str
    cached_tokens: int = 0
    host_cached_tokens: int = 0
    sequences: int = 0
    max_sequences: float = math.inf
    prefill_tokens: int = 0
    crowding: float = 1.0
    seconds_per_step: float = DEFAULT_SECONDS_PER_STEP
    seconds_per_token: float = DEFAULT_SECONDS_PER_TOKEN
    last_placed: int = 0
    duplicate_tokens: int = 0
    lacks_adapter: bool = False


def candidates(fleet: Sequence[Candidate]) -> Candidates:
    """The Candidates for a fleet."""
    figures: Figures = np.array(
        [
            (
                each.sequences, each.max_sequences, each.prefill_tokens, 0.0, each.seconds_per_step,
                each.seconds_per_token, each.last_placed, math.inf, math.inf, each.crowding,
            )
            for each in fleet
        ],
        np.float64,
    ).T  # fmt: skip
    return Candidates(
        figures,
        np.array([hash_of(each.address) for each in fleet], np.uint64),
        np.array([each.cached_tokens for each in fleet], np.float64),
        np.array([each.host_cached_tokens for each in fleet], np.float64),
        np.array([each.duplicate_tokens for each in fleet], np.float64),
        np.array([each.lacks_adapter for each in fleet], np.bool_),
    )
