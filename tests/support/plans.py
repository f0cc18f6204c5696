"""Sampling plans as tests write them: the request's parameters and what the engine adds, side by side."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from engine_svc.plan import SamplingPlan, TokenMasks
from quire.sampling import SamplingParameters

_ADDED = ("seed", "suppress_token_ids", "num_prompt_logprobs", "follows_grammar")


def masks(vocab_size: int, allowed: Mapping[int, Collection[int]]) -> TokenMasks:
    """For each slot, the tokens that it may sample."""
    bits = np.zeros((len(allowed), -(-vocab_size // 32) * 32), np.uint8)
    for row, token_ids in zip(bits, allowed.values(), strict=True):
        row[list(token_ids)] = 1
    return TokenMasks(list(allowed), np.packbits(bits, axis=1, bitorder="little").tobytes())


def join_masks(parts: Sequence[TokenMasks]) -> TokenMasks:
    """Concatenates masks."""
    return TokenMasks([slot for part in parts for slot in part.slots], b"".join(part.bits for part in parts))


def sampling_plan(**fields: Any) -> SamplingPlan:
    """A sampling plan; `seed` is the key of the noise."""
    added = {name: fields.pop(name) for name in _ADDED if name in fields}
    return SamplingPlan(SamplingParameters(**fields), **added)
