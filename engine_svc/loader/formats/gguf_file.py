"""`--load-format gguf`: a file of llama.cpp's, or several numbered ones, memory-mapped.

Blocks are handed on as the bytes that they are; their types are in the configuration, see engine_svc.gguf.config.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from engine_svc.gguf.architectures import Architecture, architecture_of
from engine_svc.gguf.facts import Facts
from engine_svc.gguf.names import IGNORED, huggingface_names
from engine_svc.loader.formats.base import CheckpointFormat
from quire.errors import StartupError
from quire.gguf.files import Gguf, files_of, is_gguf, model_in, read_gguf
from quire.gguf.header import StoredTensor
from quire.gguf.types import BF16, F16, F32
from quire.options.load import LoadOptions

if TYPE_CHECKING:
    import torch

    from engine_svc.layers.parameter import TensorSlice


class GgufFile(CheckpointFormat):
    """Gives the tensors the names, their rows the order, and norms the values, of Hugging Face's layout."""

    # Repositories have files of a dozen types beside each other: which one is meant has to be said.
    patterns: ClassVar[Sequence[str]] = ()

    def __init__(self, folder: Path, options: LoadOptions) -> None:
        """
        Args:
            folder: that the only model is in; or the file itself.

        Raises:
            StartupError: there is no such file.
        """
        super().__init__(folder, options)
        found = folder if is_gguf(folder) else model_in(folder)
        if found is None:
            raise StartupError(
                f"--load-format gguf: {folder} has no *.gguf file. Of a repository on a hub, name the file that is "
                "meant: OWNER/NAME:FILE.gguf, or OWNER/NAME:Q4_K_M."
            )
        self._file = found

    @functools.cached_property
    def _model(self) -> Gguf:
        return read_gguf(self._file)

    @functools.cached_property
    def _architecture(self) -> Architecture:
        return architecture_of(Facts(self._model))

    @functools.cached_property
    def _heads(self) -> Mapping[str, int]:
        facts = Facts(self._model)
        heads = facts.need("attention.head_count")
        return {"q_proj": heads, "k_proj": facts.find("attention.head_count_kv") or heads}

    def files(self) -> Sequence[Path]:
        """See LoadFormat.files."""
        return files_of(self._file)

    def names(self) -> Mapping[str, Path]:
        """See TensorSource.names."""
        return {name: tensor.file for names, tensor in self._named() for name in names}

    def tensors(self) -> Iterator[tuple[str, TensorSlice]]:
        """See TensorSource.tensors."""
        from engine_svc.quantization.source import HeldTensor

        files = {file: _mapped(file) for file in self.files()}
        for names, stored in self._named():
            values = self._in_layout(names[0], _values(files[stored.file], stored))
            parts = [values] if len(names) == 1 else values
            for name, part in zip(names, parts, strict=True):
                yield name, HeldTensor(part)

    def _named(self) -> Iterator[tuple[list[str], StoredTensor]]:
        """In the order of the files."""
        for stored in sorted(self._model.tensors.values(), key=lambda each: (each.file, each.offset)):
            if stored.name not in IGNORED:
                yield huggingface_names(stored, self._architecture.modules), stored

    def _in_layout(self, name: str, values: torch.Tensor) -> torch.Tensor:
        """What llama.cpp's converter did to a tensor, undone."""
        module, _, kind = name.rpartition(".")
        projection = module.rpartition(".")[2]
        if self._architecture.neighbours and projection in self._heads:
            heads = self._heads[projection]
            pairs = values.unflatten(0, (heads, values.shape[0] // heads // 2, 2))
            return pairs.transpose(1, 2).flatten(0, 2)
        if self._architecture.norm_offset and kind == "weight" and module.endswith("norm"):
            return values.float() - self._architecture.norm_offset
        return values[None] if projection == "shared_expert_gate" and values.dim() == 1 else values


def _mapped(file: Path) -> torch.Tensor:
    import torch

    return torch.from_file(str(file), shared=False, size=file.stat().st_size, dtype=torch.uint8)


def _values(mapped: torch.Tensor, stored: StoredTensor) -> torch.Tensor:
    """Numbers, or the bytes of a row's blocks."""
    import torch

    raw = mapped[stored.offset : stored.offset + stored.num_bytes]
    dtype = {F32: torch.float32, F16: torch.float16, BF16: torch.bfloat16}.get(stored.type)
    if dtype is None:
        return raw.view(*stored.shape[:-1], stored.type.row_bytes(stored.shape[-1]))
    return raw.view(dtype).view(stored.shape)
