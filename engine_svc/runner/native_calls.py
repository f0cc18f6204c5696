"""Forward passes on a CPU as the calls of C++ kernels that they come to, made again without Python or torch in between.

What cannot be recorded is found on the way: an operator of torch that computes, a collective, a kernel that was not
made for it.
"""

from __future__ import annotations

import logging
import math
import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from engine_svc.memory import zeros_when_touched
from engine_svc.native.calls import NotRecordable
from engine_svc.native.library import Kernels
from engine_svc.runner.batch import FlatBatch
from engine_svc.runner.inputs import Shape
from engine_svc.runner.recorded import CannotRecord, Capture, Forward, Replay, Shapes

logger = logging.getLogger(__name__)

_ARENA_BYTES = 256 << 20  # of address space: what is never touched takes no memory
_ALIGNMENT = 64  # bytes: a cache line, as torch has it
_NEW = {torch.ops.aten.empty.memory_format, torch.ops.aten.new_empty.default, torch.ops.aten.empty_like.default}


class Arena:
    """Gives out parts of a memory while those given out before are in use; they are until no tensor is on them."""

    def __init__(self, memory: torch.Tensor, rows: tuple[int, int] | None = None) -> None:
        """
        Args:
            memory: uint8 [bytes]. Others may use it too, at other times.
            rows: of all tensors, and of how many each gets the room: so all are where they would be with more rows.
        """
        self._rows = rows
        self._memory = memoryview(memory.numpy())
        self._used: dict[int, int] = {}  # from where to where
        self.most = 0  # bytes that were needed so far

    def new(self, like: torch.Tensor) -> torch.Tensor:
        """Of a shape and type, holding anything.

        Raises:
            NotRecordable: no room is left, or it has other rows.
        """
        if not like.numel():
            return like
        num_bytes = like.nbytes
        if self._rows is not None:
            rows, most = self._rows
            if len(like) != rows:
                raise NotRecordable(f"a tensor of {len(like)} rows in a step of {rows}")
            num_bytes = num_bytes // rows * most
        start = self._find(num_bytes)
        part = self._memory[start : start + like.nbytes]
        weakref.finalize(part, self._used.pop, start).atexit = False
        return torch.frombuffer(part, dtype=torch.uint8).view(like.dtype).view(like.shape)

    def _find(self, num_bytes: int) -> int:
        """The first gap that is wide enough."""
        start = 0
        for begin, end in sorted(self._used.items()):
            if start + num_bytes <= begin:
                break
            start = end
        end = start + -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
        if end > len(self._memory):
            raise NotRecordable(f"more than {len(self._memory)} bytes in use")
        self._used[start], self.most = end, max(self.most, end)
        return start


class KernelsAlone(TorchDispatchMode):
    """Has new tensors made in an arena; lets views pass, and nothing that computes."""

    def __init__(self, arena: Arena) -> None:
        super().__init__()
        self._arena = arena

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Torch's way to say that nothing compiles this: it need not import its compiler, which takes a second."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """
        Raises:
            NotRecordable: the operator computes, or is none that is known.
        """
        if func.namespace != "aten" or func._schema.is_mutable:
            raise NotRecordable(str(func))
        result = func(*args, **(kwargs or {}))
        if func in _NEW:
            return self._arena.new(result)
        if not _memories(result) or not _memories(result) <= _memories((args, kwargs)):
            raise NotRecordable(str(func))
        return result


def _memories(values: Any) -> set[int]:
    """Of the tensors among them."""
    return {each.untyped_storage().data_ptr() for each in tree_leaves(values) if isinstance(each, torch.Tensor)}


class NativeCapture(Capture):
    """Records calls of a level's kernels; all recordings share one arena, for only one runs at a time."""

    runs = True

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self._memory = zeros_when_touched((_ARENA_BYTES,), torch.uint8)

    def __call__(self, forward: Forward) -> tuple[Replay, torch.Tensor]:
        """See Capture."""
        arena = Arena(self._memory)
        try:
            with self._kernels.recording() as calls, KernelsAlone(arena):
                output = forward()
        except NotRecordable as error:
            raise CannotRecord(f"steps are not recorded: {error} cannot be", logging.DEBUG) from error
        logger.debug("recorded %d calls of kernels; %d KiB", calls.count, math.ceil(arena.most / 1024))
        return calls.replay, output


@dataclass(frozen=True)
class ExactShapes(Shapes):
    """Those of the steps, whatever the contexts: every row costs its time, and kernels read lengths when they run."""

    most = 256
    # With drafted tokens, some shapes come once and never again; recording takes as long as two or three replays save.
    is_patient = True

    max_query_len: int
    max_model_len: int

    def of(self, batch: FlatBatch) -> Shape | None:
        """See Shapes.of: prompts come in too many lengths, and what recording them saves is little beside them."""
        if batch.metadata[0].max_query_len > self.max_query_len:
            return None
        sequences, tokens = len(batch.slots), len(batch.token_ids)
        return Shape(sequences, tokens, min(self.max_query_len, tokens - sequences + 1), self.max_model_len)

    def early(self) -> list[Shape]:
        """See Shapes.early: one that decodes."""
        return [Shape(1, 1, 1, self.max_model_len)]
