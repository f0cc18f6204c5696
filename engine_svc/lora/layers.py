"""A rank's layers that adapters may change, and which adapter each row of the present batch runs with."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from engine_svc.layers.part import Part
from engine_svc.lora.matrices import LowRank, LowRankStack, Matrices, MatrixForm
from engine_svc.lora.names import Find
from engine_svc.lora.settings import AdapterSettings
from engine_svc.lora.tiles import TileBuffers
from engine_svc.ops.base import Ops, Product, RowTiles
from engine_svc.parallel.group import ParallelGroups

HEAD = "lm_head"


class AdapterLayers:
    """One per rank. Layers register themselves as they pack; then adapters are placed, and rows select them."""

    def __init__(
        self, settings: AdapterSettings, ops: Ops, groups: ParallelGroups, device: torch.device, find: Find
    ) -> None:
        self.settings, self.find = settings, find
        self._ops, self._groups, self._device = ops, groups, device
        self._layers: dict[str, _Layer] = {}
        self._buffers = TileBuffers(1, settings.max_adapters, device)
        self._tiles: RowTiles | None = None
        self._all = False  # layers that no adapter changes yet add, too

    @property
    def forms(self) -> Mapping[str, MatrixForm]:
        """What adapters may change, by the layers' paths."""
        return {path: layer.form for path, layer in self._layers.items()}

    def matrix(self, path: str, outputs: Mapping[str, Part], inputs: Part, product: Product) -> Product:
        """See Adapters.matrix."""
        layer = self._add(path, MatrixForm(outputs, inputs))

        def adapted(hidden: torch.Tensor, wide: bool = False) -> torch.Tensor:
            output = product(hidden, wide=wide)
            if self._tiles is not None and (layer.slots or self._all):
                layer.stack.add(hidden, output, self._tiles)
            return output

        return adapted

    def _add(self, path: str, form: MatrixForm) -> _Layer:
        stack = LowRankStack(form, self.settings, self._ops, self._groups.tensor, self._device)
        self._layers[path] = _Layer(form, stack)
        return self._layers[path]

    def reserve(self, max_rows: int) -> None:
        """Makes room for batches of so many rows."""
        self._buffers = TileBuffers(max_rows, self.settings.max_adapters, self._device)

    def place(self, slot: int, matrices: Matrices) -> None:
        """Gives a slot, 1 to max_adapters, to an adapter in place of what it held."""
        for path, layer in self._layers.items():
            layer.place(slot - 1, matrices.get(path, {}))

    @contextlib.contextmanager
    def rows(self, slots: npt.NDArray[Any], padded_rows: int | None = None) -> Iterator[None]:
        """Says which slot each row of what is computed meanwhile runs with, 0 for none.

        Args:
            padded_rows: of the batches for which a forward pass is recorded that this one is run by, or recorded with:
                all layers add then, also those that no adapter changes yet. None: of no recorded one.
        """
        self._all = padded_rows is not None
        if self._all or np.any(slots):
            self._tiles = self._buffers.fill(slots - 1, padded_rows)
        try:
            yield
        finally:
            self._tiles = None

    def head_rows(self, slots: npt.NDArray[Any]) -> contextlib.AbstractContextManager[None]:
        """The same for rows of which nothing but logits is computed."""
        head = self._layers.get(HEAD)
        return self.rows(slots) if head is not None and head.slots else contextlib.nullcontext()


class _Layer:
    """One that adapters may change."""

    def __init__(self, form: MatrixForm, stack: LowRankStack) -> None:
        self.form, self.stack = form, stack
        self.slots: set[int] = set()  # of adapters that do

    def place(self, index: int, found: Mapping[str, LowRank]) -> None:
        """Gives the matrices of an adapter to an index of the stack, counted from 0."""
        if found or index in self.slots:
            for number in range(self.form.count):
                self.stack.write(index * self.form.count + number, self._of(number, found))
        self.slots = self.slots | {index} if found else self.slots - {index}

    def _of(self, number: int, found: Mapping[str, LowRank]) -> Mapping[str, LowRank]:
        if self.form.count == 1:
            return found
        return {name: found[f"{number}.{name}"] for name in self.form.outputs if f"{number}.{name}" in found}
