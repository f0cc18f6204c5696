"""Pools the hidden states of whole sequences to what requests ask for, in float32."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from engine_svc.lora.layers import AdapterLayers
from engine_svc.ops.base import Ops
from engine_svc.pooling.adapters import adapter_slots
from engine_svc.pooling_form.form import CLASSIFY, EMBED, TOKEN_EMBED, PoolingForm
from engine_svc.pooling_plan import PooledSequence
from engine_svc.runner.adapters import NOTHING
from engine_svc.transfer import to_device

Transform = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class HiddenStates:
    """The hidden states of a flat batch; sequence i has rows starts[i] to starts[i + 1]."""

    values: torch.Tensor  # [tokens, hidden_size]
    starts: torch.Tensor  # int32 [sequences + 1], on the host

    def of(self, index: int) -> torch.Tensor:
        """The hidden states of one sequence: float32 [its tokens, hidden_size]."""
        return self.values[self.starts[index] : self.starts[index + 1]].float()


class Pooler:
    """Computes an output for each sequence, which depends on that sequence alone."""

    def __init__(
        self, form: PoolingForm, pooling: str, head: Transform | None, dense: Transform | None, ops: Ops,
        adapters: AdapterLayers | None = None,
    ) -> None:  # fmt: skip
        """
        Args:
            pooling: how sequences are pooled: CLS, LAST or MEAN.
            head: computes classes, float32 [rows, hidden_size] → [rows, classes].
            dense: applied to pooled vectors, or to each token in late-interaction models.
            adapters: of the head's layers, too; None if no adapters are served.
        """
        self._adapters = adapters
        self._form, self._pooling, self._head, self._dense, self._ops = form, pooling, head, dense, ops

    def pool(self, hidden: HiddenStates, sequences: Sequence[PooledSequence]) -> list[torch.Tensor]:
        """The output of each sequence: float32 [values] or [tokens, values]."""
        found: list[torch.Tensor | None] = [None] * len(sequences)
        whole = [index for index, sequence in enumerate(sequences) if sequence.task in (EMBED, CLASSIFY)]
        for task in (EMBED, CLASSIFY):
            wanted = [index for index in whole if sequences[index].task == task]
            if wanted:
                pooled = self._sequences(hidden, wanted)
                make = self._embeddings if task == EMBED else self._classes
                for index, values in zip(wanted, make(pooled, [sequences[i] for i in wanted]), strict=True):
                    found[index] = values
        for index, sequence in enumerate(sequences):
            if found[index] is None:
                found[index] = self._tokens(hidden.of(index), sequence)
        return [values for values in found if values is not None]

    def _sequences(self, hidden: HiddenStates, wanted: Sequence[int]) -> torch.Tensor:
        """Pools the wanted sequences: float32 [wanted, hidden_size]."""
        if self._pooling == "MEAN":
            means = self._ops.mean_rows(hidden.values, hidden.starts)
            return means if len(wanted) == len(means) else means[list(wanted)]
        rows = hidden.starts[:-1] if self._pooling == "CLS" else hidden.starts[1:] - 1
        return hidden.values[to_device(rows[list(wanted)], hidden.values.device)].float()

    def _embeddings(self, pooled: torch.Tensor, sequences: Sequence[PooledSequence]) -> Sequence[torch.Tensor]:
        pooled = pooled if self._dense is None else self._dense(pooled)
        if not any(sequence.dimensions for sequence in sequences) and all(each.normalize for each in sequences):
            return F.normalize(pooled, dim=-1).unbind()
        return [_cut(values, sequence) for values, sequence in zip(pooled, sequences, strict=True)]

    def _classes(self, pooled: torch.Tensor, sequences: Sequence[PooledSequence]) -> Sequence[torch.Tensor]:
        logits = self._logits(pooled, adapter_slots(sequences))
        active = self._activate(logits)
        return [active[i] if sequence.use_activation else logits[i] for i, sequence in enumerate(sequences)]

    def _tokens(self, hidden: torch.Tensor, sequence: PooledSequence) -> torch.Tensor:
        """The per-token output of one sequence.

        Args:
            hidden: [its tokens, hidden_size]
        """
        if sequence.task == TOKEN_EMBED:
            is_projected = self._form.is_late_interaction and self._dense is not None
            with self._rows(np.full(len(hidden), sequence.adapter_slot)):
                return _cut(self._dense(hidden) if is_projected and self._dense else hidden, sequence)
        form = self._form
        if form.is_by_steps:
            hidden = hidden[torch.tensor(sequence.token_ids, device=hidden.device) == form.step_tag_id]
        logits = self._logits(hidden, np.full(len(hidden), sequence.adapter_slot))
        if form.returned_token_ids:
            logits = logits[:, list(form.returned_token_ids)]
        return self._activate(logits) if sequence.use_activation else logits

    def _rows(self, slots: npt.NDArray[np.int64]) -> contextlib.AbstractContextManager[None]:
        """Context in which a head's rows are computed, each with the adapter in its slot."""
        return NOTHING if self._adapters is None else self._adapters.rows(slots)

    def _logits(self, hidden: torch.Tensor, slots: npt.NDArray[np.int64]) -> torch.Tensor:
        """
        Args:
            slots: see `_rows`.
        """
        assert self._head is not None
        with self._rows(slots):
            logits = self._head(hidden)
        if self._form.logit_mean or self._form.logit_sigma != 1.0:
            logits = (logits - self._form.logit_mean) / self._form.logit_sigma
        return logits

    def _activate(self, logits: torch.Tensor) -> torch.Tensor:
        if self._form.activation == "softmax":
            return logits.softmax(-1)
        return logits.sigmoid() if self._form.activation == "sigmoid" else logits


def _cut(values: torch.Tensor, sequence: PooledSequence) -> torch.Tensor:
    """Cuts embeddings to the requested number of dimensions, and normalizes them if requested."""
    values = values[..., : sequence.dimensions] if sequence.dimensions else values
    return F.normalize(values, dim=-1) if sequence.normalize else values
