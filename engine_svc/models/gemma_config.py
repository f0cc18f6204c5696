"""The shapes of what Gemma 3n and 4 have beside their layers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TokenInputsConfig:
    """What each layer adds for its tokens by their ids (per-layer embeddings, Gemma 3n and 4)."""

    vocab_size: int
    size: int  # numbers of a layer and token
    given_id: int  # token id that stands for tokens whose embeddings are given, such as those of images


@dataclass(frozen=True)
class AltUpConfig:
    """Hidden states are several streams, of which layers compute the first; see models/altup.py (Gemma 3n)."""

    count: int
    rank: int  # of the low-rank product beside attention
    scales_inputs: bool  # whether a learned factor scales what the inputs by token id depend on
