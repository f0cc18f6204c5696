"""The contract of a model that guesses tokens for another one, the target, to verify."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from engine_svc.attention.base import AttentionBackend
from engine_svc.layers.context import PresentRows
from engine_svc.models.attention import AnyLayerCache
from engine_svc.models.decoder import Decoder


class DraftModel(Protocol):
    """What the runner calls.

    Attributes:
        feature_size: of a row, which is of the target's hidden states at a position and of the token behind it. 0: it
            is of the token at the position alone.
    """

    feature_size: int

    def features_of(self, target: torch.Tensor) -> torch.Tensor:
        """What rows read of the target's hidden states: [tokens, …] → [tokens, feature_size]."""
        ...

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        caches: Sequence[AnyLayerCache],
        features: torch.Tensor | None,
    ) -> torch.Tensor:
        """Hidden states [tokens, …], from which `logits` are made, and which a row behind them reads as its features.

        Args:
            token_ids, positions: int64 [tokens]
            caches: one for each layer.
            features: [tokens, feature_size], where it reads them: the target's, or what `forward` gave for the row
                before.
        """
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """float32 [rows, tokens that it guesses among], which are the first ones of the target's vocabulary."""
        ...


@dataclass(frozen=True)
class Draft:
    """A draft model and what goes with it."""

    model: DraftModel
    attention: AttentionBackend
    num_layers: int  # that cache keys and values
    longest: int  # positions that it has
    present: PresentRows  # see LoadedModel


class DraftDecoder:
    """A whole model as a draft: it sees tokens alone."""

    feature_size = 0

    def __init__(self, model: Decoder, vocab_size: int) -> None:
        """
        Args:
            vocab_size: of the target. Either may have more tokens than the other, that stand for nothing.
        """
        self._model = model
        self._vocab_size = vocab_size
        self._last_token = model.config.vocab_size - 1

    def features_of(self, target: torch.Tensor) -> torch.Tensor:
        """See DraftModel.features_of: none."""
        return target[:, :0]

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        caches: Sequence[AnyLayerCache],
        features: torch.Tensor | None,
    ) -> torch.Tensor:
        """See DraftModel.forward."""
        if self._last_token + 1 < self._vocab_size:
            token_ids = token_ids.clamp(max=self._last_token)
        return self._model.forward(token_ids, positions, caches)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See DraftModel.logits."""
        return self._model.logits(hidden)[:, : self._vocab_size]
