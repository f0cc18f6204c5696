"""`--load-format gguf`: a llama.cpp file, or several numbered ones, memory-mapped.

Quantized blocks are passed on as bytes; their types are in the configuration, see engine_svc.gguf.config.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from engine_svc.gguf.architectures import architecture_of
from engine_svc.gguf.facts import Facts
from engine_svc.gguf.names import (
    KEYS_OF_VECTORS,
    VALUES_OF_VECTORS,
    huggingface_names,
    is_ignored,
    is_widened,
    layer_and_key,
)
from engine_svc.loader.formats.base import CheckpointFormat
from engine_svc.loader.formats.gguf_layout import HuggingFaceLayout, keys_and_values, widened
from quire.errors import StartupError
from quire.gguf.files import Gguf, files_of, is_gguf, model_in, read_gguf
from quire.gguf.header import StoredTensor
from quire.gguf.types import BF16, F16, F32
from quire.options.load import LoadOptions

if TYPE_CHECKING:
    import torch

    from engine_svc.layers.parameter import TensorSlice


class GgufFile(CheckpointFormat):
    """Converts names of tensors, the order of rows and the values of norms to Hugging Face's layout."""

    # Repositories have files of a dozen quantization types; the user has to name the one to download.
    patterns: ClassVar[Sequence[str]] = ()

    def __init__(self, folder: Path, options: LoadOptions) -> None:
        """
        Args:
            folder: the folder with a single model, or the file itself.

        Raises:
            StartupError: there is no such file.
        """
        super().__init__(folder, options)
        found = folder if is_gguf(folder) else model_in(folder)
        if found is None:
            raise StartupError(
                f"--load-format gguf: {folder} has no *.gguf file. For a repository on a hub, name the file: "
                "OWNER/NAME:FILE.gguf, or OWNER/NAME:Q4_K_M."
            )
        self._file = found

    @functools.cached_property
    def _model(self) -> Gguf:
        return read_gguf(self._file)

    @functools.cached_property
    def _facts(self) -> Facts:
        return Facts(self._model)

    @functools.cached_property
    def _layout(self) -> HuggingFaceLayout:
        return HuggingFaceLayout(architecture_of(self._facts), self._facts)

    def files(self) -> Sequence[Path]:
        """See LoadFormat.files."""
        return files_of(self._file)

    def names(self) -> Mapping[str, Path]:
        """See TensorSource.names."""
        found = {name: tensor.file for names, tensor in self._named() for name in names}
        return found | dict.fromkeys(self._numbers, self._file)

    def tensors(self) -> Iterator[tuple[str, TensorSlice]]:
        """See TensorSource.tensors."""
        import torch

        from engine_svc.quantization.source import HeldTensor

        files = {file: _mapped(file) for file in self.files()}
        for names, stored in self._named():
            try:
                parts = self._parts(stored, files)
            except (ValueError, RuntimeError) as error:
                raise StartupError(f"{stored.file}: {stored.name} of {list(stored.shape)}: {error}") from error
            for name, part in zip(names, parts, strict=True):
                yield name, HeldTensor(part)
        for name, number in self._numbers.items():
            yield name, HeldTensor(torch.tensor([number]))

    def own_name(self, name: str) -> str:
        """See TensorSource.own_name."""
        return next((stored.name for names, stored in self._named() if name in names), name)

    @functools.cached_property
    def _numbers(self) -> dict[str, float]:
        """Parameters of one number that are in the metadata, by their names in Hugging Face's layout."""
        return {
            f"model.layers.{layer}.{parameter}": number
            for key, parameter in architecture_of(self._facts).numbers.items()
            for layer, number in enumerate(self._facts.float_by_layer(key))
        }

    def _named(self) -> Iterator[tuple[list[str], StoredTensor]]:
        """Yields Hugging Face names and tensors in the order of the files."""
        architecture = architecture_of(self._facts)
        for stored in sorted(self._model.tensors.values(), key=lambda each: (each.file, each.offset)):
            if not is_ignored(stored.name, self._facts):
                yield huggingface_names(stored, architecture), stored

    def _parts(self, stored: StoredTensor, files: Mapping[Path, torch.Tensor]) -> Sequence[torch.Tensor]:
        """The tensors in Hugging Face's layout that a stored tensor becomes.

        Raises:
            ValueError: the file lacks another tensor that belongs to it, or it cannot be split.
        """
        layer, key = layer_and_key(stored.name)
        if key == KEYS_OF_VECTORS:
            other = self._model.tensors.get(f"blk.{layer}.{VALUES_OF_VECTORS}.weight")
            if other is None:
                raise ValueError(f"the file lacks blk.{layer}.{VALUES_OF_VECTORS}.weight, which belongs to it")
            both = [widened(_values(files[each.file], each), each) for each in (stored, other)]
            return [keys_and_values(*both)]
        values = _values(files[stored.file], stored)
        if is_widened(stored.name, architecture_of(self._facts), self._facts):
            values = widened(values, stored)
        return self._layout.parts(stored, values)


def _mapped(file: Path) -> torch.Tensor:
    import torch

    return torch.from_file(str(file), shared=False, size=file.stat().st_size, dtype=torch.uint8)


def _values(mapped: torch.Tensor, stored: StoredTensor) -> torch.Tensor:
    """The tensor's numbers, or the bytes of each row's blocks."""
    import torch

    raw = mapped[stored.offset : stored.offset + stored.num_bytes]
    dtype = {F32: torch.float32, F16: torch.float16, BF16: torch.bfloat16}.get(stored.type)
    if dtype is None:
        return raw.view(*stored.shape[:-1], stored.type.row_bytes(stored.shape[-1]))
    return raw.view(dtype).view(stored.shape)
