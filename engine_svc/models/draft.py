"""The contract of a draft model, which drafts tokens for another model, the target, to verify."""

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
        feature_size: size of the features in each row. A row reads the target's hidden states at a position and the
            token after it; with a feature_size of 0, it reads only the token at the position.
    """

    feature_size: int

    def features_of(self, target: torch.Tensor) -> torch.Tensor:
        """Derives the features that rows read from the target's hidden states: [tokens, …] → [tokens, feature_size]."""
        ...

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        caches: Sequence[AnyLayerCache],
        features: torch.Tensor | None,
    ) -> torch.Tensor:
        """Returns hidden states [tokens, …], which `logits` reads, and which are the features of the following row.

        Args:
            token_ids, positions: int64 [tokens]
            caches: one for each layer.
            features: [tokens, feature_size], if the model reads features: those of the target, or what `forward`
                returned for the previous row.
        """
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """float32 [rows, tokens that it chooses from], which are the first ones of the target's vocabulary."""
        ...


@dataclass(frozen=True)
class Draft:
    """A draft model and what belongs to it."""

    model: DraftModel
    attention: AttentionBackend
    num_layers: int  # layers that cache keys and values
    longest: int  # number of positions that it supports
    present: PresentRows  # see LoadedModel


class DraftDecoder:
    """A complete model as the draft: it reads only tokens."""

    feature_size = 0

    def __init__(self, model: Decoder, vocab_size: int) -> None:
        """
        Args:
            vocab_size: of the target. Either vocabulary may have extra tokens at its end that stand for nothing.
        """
        self._model = model
        self._vocab_size = vocab_size
        self._last_token = model.config.vocab_size - 1

    def features_of(self, target: torch.Tensor) -> torch.Tensor:
        """See DraftModel.features_of; there are none."""
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
