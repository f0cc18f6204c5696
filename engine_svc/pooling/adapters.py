"""Adapters in the steps of a rank that pools: those of the sequences of one step."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from engine_svc.pooling_plan import PooledSequence
from engine_svc.runner.adapters import NOTHING, RankAdapters


class PooledAdapters(RankAdapters):
    """The adapters of a rank that pools."""

    @property
    def are_recordable(self) -> bool:
        """Whether passes with adapters can be recorded."""
        return self._layers is not None and self._layers.is_recordable

    def rows(
        self, sequences: Sequence[PooledSequence], padded_rows: int | None = None
    ) -> contextlib.AbstractContextManager[None]:
        """Context in which the tokens of sequences are computed; see AdapterLayers.rows."""
        if self._layers is None:
            return NOTHING
        slots = np.repeat(adapter_slots(sequences), [len(each.token_ids) for each in sequences])
        return self._layers.rows(slots, padded_rows)


def are_adapted(sequences: Sequence[PooledSequence]) -> bool:
    """Whether any sequence has an adapter."""
    return any(each.adapter_slot for each in sequences)


def adapter_slots(sequences: Sequence[PooledSequence]) -> npt.NDArray[np.int64]:
    """The slots of the adapters of sequences; 0 for none."""
    return np.array([each.adapter_slot for each in sequences], np.int64)
