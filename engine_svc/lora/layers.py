"""A rank's layers that adapters can change, and the adapter of each row of the current batch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from engine_svc.layers.part import Layout, Part
from engine_svc.lora.embedding import AdaptedEmbedding
from engine_svc.lora.heads import AdaptedHeads
from engine_svc.lora.matrices import AdapterMatrices, LowRank, LowRankStack, MatrixForm
from engine_svc.lora.names import Find, NamesOf, module_shapes
from engine_svc.lora.settings import AdapterSettings
from engine_svc.lora.tiles import TileBuffers
from engine_svc.ops.base import ExpertAdapters, Ops, Product, RowTiles
from engine_svc.parallel.group import ParallelGroups
from engine_svc.transfer import to_device

HEAD = "lm_head"
_Whole = TypeVar("_Whole")


class AdapterLayers:
    """The adapted layers of a rank.

    Layers register themselves while packing; then adapters are placed in slots, and rows of batches select slots.
    """

    def __init__(
        self, settings: AdapterSettings, ops: Ops, groups: ParallelGroups, device: torch.device, find: Find,
        names: NamesOf,
    ) -> None:  # fmt: skip
        self.settings, self.find, self.names = settings, find, names
        self._ops, self._groups, self._device = ops, groups, device
        self._layers: dict[str, _Layer] = {}
        self._buffers = TileBuffers(1, settings.max_adapters, device)
        self._row_adapters = torch.empty(0, dtype=torch.int32)  # of each row of the batch; -1 for none
        self._tiles: RowTiles | None = None
        self._row_slots: npt.NDArray[Any] = np.zeros(0, np.int64)  # of the current batch
        self._num_heads = 0  # in layers with per-head matrices; 0 if there are no such layers
        self._head_buffers: TileBuffers | None = None
        self._head_tiles: RowTiles | None = None
        self._looked_up: list[_Layer] = []
        self._all = False  # whether layers that no adapter changes yet also run their adapter kernels

    @property
    def forms(self) -> Mapping[str, MatrixForm]:
        """What adapters can change, by the layers' paths."""
        return {path: layer.form for path, layer in self._layers.items()}

    def matrix(
        self, path: str, outputs: Mapping[str, Part], inputs: Part, product: Product, layout: Layout = Layout()
    ) -> Product:
        """See Adapters.matrix."""
        form = MatrixForm(outputs, inputs, layout=layout)
        if not self._may_change(path, form):
            return product
        stack, layer = self._add(path, form)

        def adapted(hidden: torch.Tensor, wide: bool = False) -> torch.Tensor:
            output = product(hidden, wide=wide)
            if self._tiles is not None and (layer.slots or self._all):
                stack.add(hidden, output, self._tiles)
            for rows, own in self._rows_of(layer.products):
                output[rows] = own(hidden[rows], wide=wide)
            return output

        return adapted

    def _may_change(self, path: str, form: MatrixForm) -> bool:
        """Whether any module of a layer is one that adapters may change."""
        return any(map(self.settings.targets.have, module_shapes({path: form}, self.find, self.names)))

    def _rows_of(self, whole: Mapping[int, _Whole]) -> Iterator[tuple[torch.Tensor, _Whole]]:
        """Yields rows of the current batch whose adapter replaces a whole matrix of a layer, with that matrix."""
        for index, own in whole.items() if self._tiles is not None else ():
            rows = np.flatnonzero(self._row_slots == index + 1)
            if len(rows):
                yield to_device(rows, self._device), own

    def experts(
        self, path: str, count: int, inner: Part, hidden_size: int
    ) -> Callable[[torch.Tensor], ExpertAdapters | None]:
        """See Adapters.experts."""
        whole = Part(0, hidden_size, hidden_size)
        gate_up = MatrixForm({"gate": inner, "up": inner}, whole, count)
        down = MatrixForm({"down": whole}, inner, count)
        if not self._may_change(f"{path}.gate_up", gate_up) and not self._may_change(f"{path}.down", down):
            return lambda hidden: None
        first_stack, first = self._add(f"{path}.gate_up", gate_up)
        second_stack, second = self._add(f"{path}.down", down)

        def added(hidden: torch.Tensor) -> ExpertAdapters | None:
            if self._tiles is None or not (first.slots or second.slots or self._all):
                return None
            return ExpertAdapters(self._row_adapters[: len(hidden)], first_stack.matrices, second_stack.matrices)

        return added

    def embedding(self, path: str, vocabulary: Part, size: int) -> AdaptedEmbedding:
        """See Adapters.embedding."""
        form = MatrixForm({"": Part(0, size, size)}, vocabulary, is_looked_up=True)
        stack, layer = self._add(path, form)
        self._looked_up.append(layer)
        return AdaptedEmbedding(
            stack,
            vocabulary,
            lambda: self._tiles if layer.slots else None,
            lambda: self._rows_of(layer.embeddings),
        )

    def classes(
        self, path: str, product: Product, weight: torch.Tensor, bias: torch.Tensor | None, ops: Ops
    ) -> Product:
        """See Adapters.classes."""
        outputs, inputs = weight.shape
        form = MatrixForm({"": Part(0, outputs, outputs)}, Part(0, inputs, inputs), is_head=True)
        if not self._may_change(path, form):
            return product
        layer = self._layers[path] = _Head(form, weight, bias, ops)

        def adapted(hidden: torch.Tensor, wide: bool = False) -> torch.Tensor:
            output = product(hidden, wide=wide)
            for rows, own in self._rows_of(layer.products):
                output[rows] = own(hidden[rows], wide=wide)
            return output

        return adapted

    def heads(self, path: str, rows: Part, heads: int, split: int, size: int) -> AdaptedHeads:
        """See Adapters.heads."""
        if self._num_heads not in (0, heads):
            raise ValueError(f"{path} has {heads} heads, but other layers have {self._num_heads}")
        self._num_heads = heads
        sizes = (split, rows.count // heads - split, size)
        adapted = AdaptedHeads(
            heads, sizes, self.settings, self._ops, self._device,
            lambda: self._head_tiles if layer.slots or self._all else None,
        )  # fmt: skip
        layer = self._layers[path] = _Layer(MatrixForm({"": rows}, Part(0, size, size)), adapted.write)
        return adapted

    def _add(self, path: str, form: MatrixForm) -> tuple[LowRankStack, _Layer]:
        settings = replace(self.settings, fully_sharded=False) if form.count > 1 else self.settings
        stack = LowRankStack(form, settings, self._ops, self._groups.tensor, self._device)
        self._layers[path] = _Layer(form, stack.write)
        return stack, self._layers[path]

    @property
    def is_recordable(self) -> bool:
        """Whether adapters run by kernels alone, so that a CUDA graph can capture them."""
        return not any(layer.slots or layer.embeddings for layer in self._looked_up)

    def reserve(self, max_rows: int) -> None:
        """Allocates buffers for batches of up to `max_rows` rows."""
        self._buffers = TileBuffers(max_rows, self.settings.max_adapters, self._device)
        if heads := self._num_heads:
            self._head_buffers = TileBuffers(max_rows * heads, self.settings.max_adapters * heads, self._device)
        self._row_adapters = torch.full((max_rows,), -1, dtype=torch.int32, device=self._device)

    def place(self, slot: int, adapter: AdapterMatrices) -> None:
        """Puts an adapter into a slot, 1 to max_adapters, replacing what the slot held."""
        for path, layer in self._layers.items():
            if isinstance(layer, _Head):
                layer.replace(slot - 1, adapter.parts.get(path, {}), adapter.whole.get(path), adapter.biases.get(path))
                continue
            layer.place(slot - 1, adapter.parts.get(path, {}))
            layer.embeddings.pop(slot - 1, None)
            layer.products.pop(slot - 1, None)
            if path in adapter.whole and layer.form.is_looked_up:
                layer.embeddings[slot - 1] = adapter.whole[path].to(self._device)
            elif path in adapter.whole:
                layer.products[slot - 1] = self._ops.matrix(adapter.whole[path].to(self._device), None)

    @contextlib.contextmanager
    def rows(self, slots: npt.NDArray[Any], padded_rows: int | None = None) -> Iterator[None]:
        """A context in which each row of the batch uses the adapter in its slot, 0 for none.

        Args:
            padded_rows: the batch size of the CUDA graph that is captured or replayed. Then all layers run their
                adapter kernels, even if no adapter changes them yet. None means no CUDA graph.
        """
        self._all = padded_rows is not None
        if self._all or np.any(slots):
            self._tiles, self._row_slots = self._buffers.fill(slots - 1, padded_rows), slots
            self._row_adapters[: len(slots)].copy_(to_device(slots - 1, self._device))
            self._row_adapters[len(slots) : padded_rows].fill_(-1)
            self._head_tiles = self._tiles_of_heads(slots - 1, padded_rows)
        try:
            yield
        finally:
            self._tiles = self._head_tiles = None

    def _tiles_of_heads(self, adapters: npt.NDArray[Any], padded_rows: int | None) -> RowTiles | None:
        """The tiles of all rows' heads; None if there are no layers with per-head matrices."""
        heads = self._num_heads
        if self._head_buffers is None:
            return None
        groups = np.where(adapters[:, None] >= 0, adapters[:, None] * heads + np.arange(heads), -1)
        return self._head_buffers.fill(groups.reshape(-1), padded_rows and padded_rows * heads)

    def head_rows(self, slots: npt.NDArray[Any]) -> contextlib.AbstractContextManager[None]:
        """Like `rows`, for rows of which only logits are computed."""
        head = self._layers.get(HEAD)
        is_changed = head is not None and (head.slots or head.products)
        return self.rows(slots) if is_changed else contextlib.nullcontext()


class _Layer:
    """A layer that adapters can change."""

    def __init__(self, form: MatrixForm, write: Callable[[int, Mapping[str, LowRank]], None]) -> None:
        """
        Args:
            write: writes an adapter's matrices to a group, counted from 0: adapter * form.count + index of the layer.
        """
        self.form, self._write = form, write
        self.slots: set[int] = set()  # of adapters that change it, counted from 0
        # Whole matrices that replace the layer's, by the adapter's slot, counted from 0.
        self.embeddings: dict[int, torch.Tensor] = {}
        self.products: dict[int, Product] = {}

    def place(self, index: int, found: Mapping[str, LowRank]) -> None:
        """Writes the matrices of an adapter to a slot; without any, clears it."""
        if found or index in self.slots:
            for number in range(self.form.count):
                self._write(index * self.form.count + number, self._of(number, found))
        self.slots = self.slots | {index} if found else self.slots - {index}

    def _of(self, number: int, found: Mapping[str, LowRank]) -> Mapping[str, LowRank]:
        if self.form.count == 1:
            return found
        return {name: found[f"{number}.{name}"] for name in self.form.outputs if f"{number}.{name}" in found}


class _Head(_Layer):
    """A layer on top of a pooled model, of which each adapter may have a version of its own."""

    def __init__(self, form: MatrixForm, weight: torch.Tensor, bias: torch.Tensor | None, ops: Ops) -> None:
        super().__init__(form, lambda group, found: None)
        self._weight, self._bias, self._ops = weight, bias, ops

    def replace(
        self, index: int, found: Mapping[str, LowRank], whole: torch.Tensor | None, bias: torch.Tensor | None
    ) -> None:
        """Makes the product of an adapter in a slot, counted from 0; without changes by the adapter, there is none.

        Args:
            found: added to the matrix.
            whole, bias: in place of the base's, if they are given.
        """
        self.products.pop(index, None)
        if not found and whole is None and bias is None:
            return
        device = self._weight.device
        weight = self._weight if whole is None else whole.to(device)
        for each in found.values():
            weight = weight + each.up.to(device).float().T @ each.down.to(device).float()
        self.products[index] = self._ops.matrix(weight, self._bias if bias is None else bias.to(device))
