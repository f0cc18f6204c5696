"""Adapters in the steps of a rank: reads and places them, and tracks which adapter each slot's sequence uses."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import numpy as np

from engine_svc.lora.layers import AdapterLayers
from engine_svc.lora.reading import AdapterReader
from engine_svc.lora.store import AdapterStore
from engine_svc.plan import AdapterChanges, NewSequence
from engine_svc.runner.batch import FlatBatch

NOTHING = contextlib.nullcontext()


class RankAdapters:
    """The adapters of a rank. If adapters are not served (no adapter layers), every method is a no-op."""

    def __init__(self, layers: AdapterLayers | None, max_rows: int) -> None:
        """
        Args:
            layers: None means that no adapters are served.
            max_rows: the most rows of a batch.
        """
        self._layers = layers
        self._store: AdapterStore | None = None
        self.modules: dict[str, tuple[int, int]] = {}
        self.heads: list[str] = []  # see KvCacheSpec.adapter_heads
        if layers is not None:
            layers.reserve(max_rows)
            reader = AdapterReader(layers.forms, layers.find, layers.settings, layers.names)
            self.modules, self.heads = reader.modules, sorted(reader.heads)
            self._store = AdapterStore(layers, reader.read)

    def begin(self, changes: AdapterChanges) -> None:
        """See AdapterChanges."""
        if self._store is not None:
            self._store.begin(changes)

    def take_read(self) -> dict[int, str]:
        """See StepResult.read_adapters."""
        return {} if self._store is None else self._store.take_read()

    def close(self) -> None:
        """Stops reading adapters."""
        if self._store is not None:
            self._store.close()


class StepAdapters(RankAdapters):
    """The adapters of a rank that generates, by the slots of its sequences."""

    def __init__(self, layers: AdapterLayers | None, max_num_seqs: int, max_rows: int) -> None:
        """
        Args:
            layers, max_rows: see RankAdapters.
        """
        super().__init__(layers, max_rows)
        self._slots = np.zeros(max_num_seqs, np.int64)  # adapter slot on the device by runner slot; 0 means none
        self._warms = False

    def add(self, sequence: NewSequence) -> None:
        """Records the adapter of a sequence that takes a slot of the runner."""
        self._slots[sequence.slot] = sequence.adapter_slot

    @property
    def are_served(self) -> bool:
        """Whether there are layers that adapters can change."""
        return self._layers is not None

    def is_used(self, batch: FlatBatch) -> bool:
        """Whether any row of the batch runs with an adapter."""
        return self._layers is not None and (self._warms or bool(self._slots[batch.slots].any()))

    def are_recordable(self, batch: FlatBatch) -> bool:
        """Whether adapters allow a forward pass over the batch to be recorded."""
        return self._layers is None or self._layers.is_recordable or not self.is_used(batch)

    def rows(self, batch: FlatBatch, padded_rows: int | None = None) -> contextlib.AbstractContextManager[None]:
        """Context in which the batch's rows are computed; see AdapterLayers.rows."""
        if self._layers is None:
            return NOTHING
        if self._warms:
            return self.nobodys_rows(batch.num_tokens)
        slots = np.repeat(self._slots[batch.slots], np.diff(batch.query_start))
        return self._layers.rows(slots, padded_rows)

    @contextlib.contextmanager
    def warming(self) -> Iterator[None]:
        """Context in which adapter kernels run in every pass, although no row has an adapter."""
        self._warms = True
        yield
        self._warms = False

    def nobodys_rows(self, padded_rows: int) -> contextlib.AbstractContextManager[None]:
        """Context in which `padded_rows` rows without adapters are computed as in a recorded pass with adapters."""
        return NOTHING if self._layers is None else self._layers.rows(np.zeros(0, np.int64), padded_rows)

    def head_rows(self, slots: Sequence[int]) -> contextlib.AbstractContextManager[None]:
        """Context in which logits are computed: row i belongs to the sequence in the runner's slot `slots[i]`."""
        if self._warms:
            return self.nobodys_rows(len(slots))
        return NOTHING if self._layers is None else self._layers.head_rows(self._slots[list(slots)])
