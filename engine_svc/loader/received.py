"""Weights that a trainer sends: tensors of the served checkpoint, which become files of a folder to load from."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from engine_svc.loader.checkpoint_form import CheckpointForm
from engine_svc.loader.formats.safetensors_files import opened
from engine_svc.parallel.trainer_group import TrainerGroup
from engine_svc.upkeep import (
    CheckTensors,
    CompleteWeights,
    JoinTrainer,
    LeaveTrainer,
    ReceiveTensors,
    SentTensor,
    TransferUpkeep,
)
from quire.errors import StartupError

# Torch's dtypes by the names of safetensors files.
_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "F8_E8M0": torch.float8_e8m0fnu, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
_CODES = {str(dtype).removeprefix("torch."): code for code, dtype in _DTYPES.items()}
_NUMBERS = ("F64", "F32", "F16", "BF16")  # convertible into each other
_FILE_BYTES = 1 << 30
_NOT_LINKED = (".safetensors", ".safetensors.index.json", ".bin", ".pt", ".pth", ".gguf")


class WeightReceiver:
    """A rank's part in receiving weights. All ranks receive all tensors; the first rank writes them to files."""

    def __init__(
        self, form: Callable[[bool], CheckpointForm], draft_folder: Callable[[], Path], device: torch.device, rank: int
    ) -> None:
        """
        Args:
            form: of the served checkpoint, or of the draft model's; may raise StartupError.
            draft_folder: of the draft model that the options name; may raise StartupError.
            rank: among the worker's ranks.
        """
        self._form, self._draft_folder, self._device, self._rank = form, draft_folder, device, rank
        self._group: TrainerGroup | None = None

    def upkeep(self, command: TransferUpkeep) -> list[str]:
        """Executes the command; returns why it failed, if so."""
        try:
            match command:
                case JoinTrainer():
                    self._leave()
                    self._form(False)
                    self._group = TrainerGroup(command, self._rank, self._device)
                case LeaveTrainer():
                    self._leave()
                case CheckTensors():
                    form = self._form(command.of_draft)
                    for tensor in command.tensors:
                        _stored_dtype(form, tensor)
                case ReceiveTensors():
                    self._receive(command)
                case CompleteWeights() if self._rank == 0:
                    self._complete(command)
        except (StartupError, SafetensorError, OSError, RuntimeError) as error:
            self._leave()
            return [str(error).rstrip(".")]
        return []

    def _leave(self) -> None:
        if self._group is not None:
            self._group.close()
        self._group = None

    def _receive(self, command: ReceiveTensors) -> None:
        """
        Raises:
            RuntimeError: see TrainerGroup.receive.
            StartupError, SafetensorError, OSError: a file cannot be read or written.
        """
        if self._group is None:
            raise RuntimeError("the trainer's group was left")
        kept: dict[str, torch.Tensor] = {}
        kept_bytes, form, deadline = 0, self._form(command.of_draft), time.monotonic() + command.seconds
        for buffer in buffers(command.tensors, command.buffer_bytes):
            sizes = list(map(num_bytes, buffer))
            content = self._group.receive(sum(sizes), deadline)
            if self._rank:
                continue
            for tensor, part in zip(buffer, content.split(sizes), strict=True):
                if (stored := _stored_dtype(form, tensor)) is not None:
                    values = part.clone().view(_dtype(tensor)).view(tensor.shape)  # a copy is aligned
                    kept[tensor.name] = values.to("cpu", stored)
                    kept_bytes += kept[tensor.name].nbytes
            if kept_bytes > _FILE_BYTES:
                _write(kept, Path(command.folder))
                kept, kept_bytes = {}, 0
        if kept:
            _write(kept, Path(command.folder))

    def _complete(self, command: CompleteWeights) -> None:
        """Adds the tensors that were not received, and links to the other files."""
        folder, served = Path(command.folder), Path(command.served) if command.served else self._draft_folder()
        received = {name for file in folder.glob("*.safetensors") for name in _names_in(file)}
        missing = self._form(command.of_draft).tensors.keys() - received
        kept: dict[str, torch.Tensor] = {}
        for file in sorted(served.glob("*.safetensors")):
            with opened(file) as reader:
                for name in missing & set(reader.keys()):
                    kept[name] = reader.get_tensor(name)
        if kept:
            _write(kept, folder)
        for file in served.iterdir():
            if file.is_file() and not file.name.endswith(_NOT_LINKED):
                (folder / file.name).symlink_to(file.resolve())


def buffers(tensors: Iterable[SentTensor], most_bytes: int | None) -> Iterator[Sequence[SentTensor]]:
    """The tensors of each broadcast; see ReceiveTensors.buffer_bytes."""
    buffer: list[SentTensor] = []
    size = 0
    for tensor in tensors:
        buffer.append(tensor)
        size += num_bytes(tensor)
        if most_bytes is None or size > most_bytes:
            yield buffer
            buffer, size = [], 0
    if buffer:
        yield buffer


def _stored_dtype(form: CheckpointForm, tensor: SentTensor) -> torch.dtype | None:
    """The dtype in which a sent tensor is kept; None if the model does not read it.

    Args:
        form: of the served checkpoint.

    Raises:
        StartupError: it cannot replace a tensor of the checkpoint.
    """
    code, shape = _CODES.get(tensor.dtype), list(tensor.shape)
    if code is None:
        raise StartupError(f"{tensor.name} is of dtype {tensor.dtype[:40]!r}; it must be one of {', '.join(_CODES)}.")
    if form.is_unread(tensor.name):
        return None
    served = form.tensors.get(tensor.name, "")
    if not served:
        raise StartupError(f"{tensor.name[:200]} is not in the served checkpoint, whose names must be sent.")
    wanted = served.partition(" ")[0]
    convertible = code in _NUMBERS and wanted in _NUMBERS
    if served != f"{wanted if convertible else code} {shape}":
        raise StartupError(f"{tensor.name} is {code} {shape}, but {served} in the served checkpoint.")
    return _DTYPES[wanted]


def num_bytes(tensor: SentTensor) -> int:
    """The size of a tensor as it is sent."""
    return math.prod(tensor.shape) * _dtype(tensor).itemsize


def _dtype(tensor: SentTensor) -> torch.dtype:
    return _DTYPES[_CODES[tensor.dtype]]


def _names_in(file: Path) -> Sequence[str]:
    with opened(file) as reader:
        return list(reader.keys())


def _write(tensors: dict[str, torch.Tensor], folder: Path) -> None:
    number = sum(1 for _ in folder.glob("*.safetensors"))
    save_file(tensors, folder / f"received-{number:05}.safetensors", {"format": "pt"})
