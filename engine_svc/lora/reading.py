"""Reads this rank's part of an adapter from its folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from io import BufferedReader
from pathlib import Path

import torch

from engine_svc.adapters.folder import LowRankPart, read_folder
from engine_svc.adapters.header import ITEM_BYTES, TensorPlace, broken
from engine_svc.lora.matrices import AdapterMatrices, LowRank, MatrixForm
from engine_svc.lora.names import Find, NamesOf, module_shapes
from engine_svc.lora.settings import AdapterSettings

_TYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class AdapterReader:
    """Reads adapter folders written by the PEFT library."""

    def __init__(
        self,
        forms: Mapping[str, MatrixForm],
        find: Find,
        settings: AdapterSettings,
        names: NamesOf,
    ) -> None:
        """
        Args:
            forms: of the layers that adapters can change, by path.
        """
        self._forms, self._find, self._settings = forms, find, settings
        self.modules = module_shapes(forms, find, names)
        self.heads = frozenset(module for module in self.modules if forms[find(module)[0]].is_head)

    def read(self, path: Path) -> AdapterMatrices:
        """Reads an adapter.

        Raises:
            InvalidRequest: it cannot be served; names file and tensor, what was expected and what was found.
            OSError: it cannot be read.
        """
        settings = self._settings
        folder = read_folder(
            path, settings.max_rank, self.modules, settings.targets, is_part=settings.is_part, heads=self.heads
        )
        found: dict[str, dict[str, LowRank]] = {}
        whole, biases = {}, {}
        with folder.weights_file.open("rb") as opened:
            for module, part in folder.parts.items():
                layer, name = self._find(module)
                found.setdefault(layer, {}).update(self._low_ranks(opened, part, self._forms[layer], name))
            for module, place in folder.whole.items():
                layer, _ = self._find(module)
                own, is_head = self._forms[layer].vocabulary, self._forms[layer].is_head
                read = _read(opened, place, own.first, own.count)
                whole[layer] = read if is_head else read.to(self._settings.base_dtype)
            for module, place in folder.biases.items():
                biases[self._find(module)[0]] = _read(opened, place, 0, 1)[0]
        return AdapterMatrices(found, whole, biases)

    def _low_ranks(
        self, opened: BufferedReader, part: LowRankPart, form: MatrixForm, name: str
    ) -> Iterator[tuple[str, LowRank]]:
        """Yields the part of a module for each of the layer's matrices that it comprises."""
        inputs = form.inputs
        down = _read(opened, part.a, 0, part.rank)[:, inputs.first : inputs.first + inputs.count]
        for each, ranges in _rows(form, name):
            up = torch.cat([_read(opened, part.b, first, count) for first, count in ranges]).T * part.scale
            yield each, LowRank(self._kept(down), self._kept(up))

    def _kept(self, values: torch.Tensor) -> torch.Tensor:
        return values.to(self._settings.dtype).contiguous()


def _rows(form: MatrixForm, name: str) -> Iterator[tuple[str, list[tuple[int, int]]]]:
    """Yields each matrix that a module comprises, and this rank's ranges of its outputs; see Layout.pieces."""
    _, _, matrix = name.rpartition(".")
    if matrix in form.outputs:
        part = form.outputs[matrix]
        yield name, [(part.first, part.count)]
        return
    above, total = form.layout.above(form.outputs), sum(part.total for part in form.outputs.values())
    for each, part in form.outputs.items():
        yield each, list(form.layout.pieces(part, above[each], total))


def _read(opened: BufferedReader, place: TensorPlace, first: int, count: int) -> torch.Tensor:
    """Reads rows of a matrix as float32; a vector counts as one row. Files are not mapped, as truncating a mapped file
    would crash the process."""
    columns = place.shape[-1]
    row_bytes = columns * ITEM_BYTES[place.dtype]
    opened.seek(place.start + first * row_bytes)
    values = bytearray(count * row_bytes)
    if opened.readinto(values) < len(values):
        raise broken(f"{opened.name}: {place.name} is truncated.")
    return torch.frombuffer(values, dtype=_TYPES[place.dtype]).view(count, columns).float()
