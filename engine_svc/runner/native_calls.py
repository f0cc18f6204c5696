"""Forward passes on a CPU, recorded once as calls of C++ kernels and replayed for steps of any size without Python or
torch in between.

A step's size changes only the numbers of rows in the calls, which are found by comparing passes of several sizes.
Recording detects what cannot be replayed: a torch operator that computes, a collective, a kernel that does not support
recording, a pass that makes different calls for more rows.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from engine_svc.memory import zeros_when_touched
from engine_svc.native.calls import NotRecordable, SizedCalls
from engine_svc.native.library import Kernels
from engine_svc.runner.adapters import StepAdapters
from engine_svc.runner.batch import FlatBatch, Inputs
from engine_svc.runner.inputs import InputBuffers, Room, Shape

logger = logging.getLogger(__name__)

# In larger steps, Python's overhead is negligible; and up to this size, the intermediate tensors fit into the arena.
MOST_TOKENS = 1024
_ARENA_BYTES = 256 << 20  # address space: untouched pages take no memory
_FEWEST_TOKENS = 8  # fewest tokens of the largest step for which three different pass sizes can be compared
_ALIGNMENT = 64  # bytes: a cache line, as in torch
_NEW = {torch.ops.aten.empty.memory_format, torch.ops.aten.new_empty.default, torch.ops.aten.empty_like.default}


class Arena:
    """Allocates tensors in a fixed memory. A part is free again once no tensor uses it."""

    def __init__(self, memory: torch.Tensor, rows: Collection[int], most: int) -> None:
        """
        Args:
            memory: uint8 [bytes]. May be shared with others that use it at other times.
            rows: numbers of rows that grow with the size of a pass. Each tensor with one of these numbers of rows gets
                the room of one with `most` rows, so that every tensor has the same address as in the largest pass.
        """
        self._rows, self._most_rows = rows, most
        self._memory = memoryview(memory.numpy())
        self._used: dict[int, int] = {}  # first byte of each used part → first byte behind it
        self.most = 0  # highest number of bytes needed so far

    def new(self, like: torch.Tensor) -> torch.Tensor:
        """An uninitialized tensor of the shape and dtype of `like`.

        Raises:
            NotRecordable: no room is left.
        """
        if not like.numel():
            return like
        grows = like.shape[:1] and like.shape[0] in self._rows
        start = self._find(like.nbytes // like.shape[0] * self._most_rows if grows else like.nbytes)
        part = self._memory[start : start + like.nbytes]
        weakref.finalize(part, self._used.pop, start).atexit = False
        return torch.frombuffer(part, dtype=torch.uint8).view(like.dtype).view(like.shape)

    def _find(self, num_bytes: int) -> int:
        """Reserves the first gap that is wide enough and returns its start."""
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
    """Allocates new tensors in an arena; allows views, and no torch operator that computes."""

    def __init__(self, arena: Arena) -> None:
        super().__init__()
        self._arena = arena

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Tells torch that nothing compiles this mode, so it need not import its compiler, which takes a second."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """
        Raises:
            NotRecordable: the operator computes, or is unknown.
        """
        if func.namespace != "aten" or func._schema.is_mutable:
            raise NotRecordable(str(func))
        result = func(*args, **(kwargs or {}))
        if func in _NEW:
            return self._arena.new(result)
        if not is_view(result, (args, kwargs)):
            raise NotRecordable(str(func))
        return result


def is_view(result: Any, inputs: Any) -> bool:
    """Whether an operator has made only views: all tensors of its result share the memory of its inputs."""
    return bool(_memories(result)) and _memories(result) <= _memories(inputs)


def _memories(values: Any) -> set[int]:
    """Addresses of the storages of all tensors among the values."""
    return {each.untyped_storage().data_ptr() for each in tree_leaves(values) if isinstance(each, torch.Tensor)}


class PassSize(NamedTuple):
    """The size of a forward pass."""

    sequences: int
    tokens: int
    outputs: int  # rows whose hidden states are needed: see OutputRows


class SizedPass:
    """A recorded forward pass for any number of sequences and tokens up to a maximum.

    Its intermediate tensors keep their addresses.
    """

    def __init__(
        self, forward: Callable[[PassSize], torch.Tensor], kernels: Kernels, most: tuple[int, int],
        memory: torch.Tensor,
    ) -> None:  # fmt: skip
        """
        Args:
            forward: runs a pass of a given size, which reads its inputs at the addresses where replays will read
                theirs; returns hidden states [tokens or outputs, hidden_size].
            most: the most sequences and tokens of a pass.
            memory: from `arena_memory`. May be shared with others that use it at other times.

        Raises:
            NotRecordable: the pass does more than call kernels, or makes different calls at other sizes; or `most` has
                too few tokens.
        """
        sequences, tokens = most
        if tokens < _FEWEST_TOKENS:
            raise NotRecordable(f"a step of {tokens} tokens at most")
        # Over these sizes, no two of the three numbers are proportional. The last size outputs all rows, because its
        # hidden states are the ones that are kept.
        sizes = [PassSize(1, 3, 2), PassSize(min(2, sequences), 7, 5), PassSize(sequences, tokens, tokens)]
        noted = []
        for size in sizes:
            arena = Arena(memory, {size.tokens, size.outputs}, tokens)
            with kernels.recording() as calls, KernelsAlone(arena):
                self._hidden = forward(size)
            noted.append(calls)
        self._calls = SizedCalls(kernels.replay, noted, sizes)
        self._kept = forward  # the calls point at objects that it holds
        logger.debug("recorded %d kernel calls; %d KiB of memory between them", self._calls.count, arena.most >> 10)

    def run(self, size: PassSize) -> torch.Tensor:
        """Returns hidden states [outputs, hidden_size], valid until the next pass.

        If the pass computes all rows, all must be outputs.
        """
        self._calls.replay(size)
        return self._hidden[: size.outputs]


def arena_memory() -> torch.Tensor:
    """Memory for the arena of a model's passes."""
    return zeros_when_touched((_ARENA_BYTES,), torch.uint8)


class NotedSteps:
    """Recorded steps of a decoder, of any size up to a maximum: one pass for steps with adapters, one for the others.

    A step's inputs are copied into buffers at fixed addresses.
    """

    def __init__(
        self, forward: Callable[[Inputs], Callable[[], torch.Tensor]], kernels: Kernels, room: Room, nobodys_slot: int,
        adapters: StepAdapters, *, skips_rows: bool,
    ) -> None:  # fmt: skip
        """
        Args:
            forward: prepares a pass over inputs.
            room: the largest step; steps of more than MOST_TOKENS tokens are never replayed.
            nobodys_slot: see InputBuffers.
            adapters: the rank's adapters.
            skips_rows: whether passes without adapters compute only output rows in their last layer.
        """
        self._skips_rows = skips_rows
        tokens = min(room.tokens, MOST_TOKENS)
        self._forward, self._kernels, self._adapters = forward, kernels, adapters
        self._most = min(room.sequences, tokens), tokens
        self._buffers = InputBuffers(room._replace(tokens=tokens), nobodys_slot)
        self._memory = arena_memory()
        self._passes: dict[bool, SizedPass | None] = {}  # by whether they have adapters; None means not recordable
        self._record(has_adapters=False)

    def run(self, batch: FlatBatch) -> torch.Tensor | None:
        """Replays a batch and returns the hidden states of its output rows; None if the model's code must run it."""
        adapters = self._adapters
        sequences, tokens = self._most
        fits = len(batch.slots) <= sequences and batch.num_tokens <= tokens
        if not fits or batch.embedded is not None or not adapters.are_recordable(batch):
            return None
        if not adapters.is_used(batch):
            return self._run(batch, has_adapters=False)
        with adapters.rows(batch, tokens):
            return self._run(batch, has_adapters=True)

    def _run(self, batch: FlatBatch, *, has_adapters: bool) -> torch.Tensor | None:
        if has_adapters not in self._passes:
            self._record(has_adapters=has_adapters)
        found = self._passes[has_adapters]
        if found is None:
            return None
        self._buffers.fill(batch)
        return found.run(PassSize(len(batch.slots), batch.num_tokens, batch.num_outputs))

    def _record(self, *, has_adapters: bool) -> None:
        prepared = []  # everything prepared for a pass must live as long as the recorded calls

        def forward(size: PassSize) -> torch.Tensor:
            shape = _shape(size) if self._skips_rows and not has_adapters else _shape(size)._replace(outputs=0)
            prepared.append(self._forward(self._buffers.views(shape)))
            return prepared[-1]()

        try:
            self._passes[has_adapters] = SizedPass(forward, self._kernels, self._most, self._memory)
        except NotRecordable as error:
            logger.debug("steps are not recorded: %s cannot be", error)
            self._passes[has_adapters] = None


def _shape(size: PassSize) -> Shape:
    """The shape of a pass. Its query length and context are placeholders: kernels read the real ones when they run."""
    longest = size.tokens - size.sequences + 1
    return Shape(size.sequences, size.tokens, longest, longest, outputs=size.outputs)
