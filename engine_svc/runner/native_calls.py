"""Forward passes on a CPU as the calls of C++ kernels that they come to, noted once and made for steps of any size,
without Python or torch in between.

What a step's size changes of the calls is how many rows they have, which is found by comparing passes of several sizes.
What cannot be recorded is found on the way: an operator of torch that computes, a collective, a kernel that was not
made for it, a pass that does other things with more rows.
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

# Beside larger steps, what Python takes is nothing; and what lies between the kernels of such a one fits the memory.
MOST_TOKENS = 1024
_ARENA_BYTES = 256 << 20  # of address space: what is never touched takes no memory
_FEWEST_TOKENS = 8  # of a step, for which passes of three sizes can be told apart
_ALIGNMENT = 64  # bytes: a cache line, as torch has it
_NEW = {torch.ops.aten.empty.memory_format, torch.ops.aten.new_empty.default, torch.ops.aten.empty_like.default}


class Arena:
    """Gives out parts of a memory while those given out before are in use; they are until no tensor is on them."""

    def __init__(self, memory: torch.Tensor, rows: Collection[int], most: int) -> None:
        """
        Args:
            memory: uint8 [bytes]. Others may use it too, at other times.
            rows: numbers of rows that grow with the size of a pass. Each tensor with that many rows gets the room of
                one with `most`, so that every tensor lies where it would in the largest pass.
        """
        self._rows, self._most_rows = rows, most
        self._memory = memoryview(memory.numpy())
        self._used: dict[int, int] = {}  # from where to where
        self.most = 0  # bytes that were needed so far

    def new(self, like: torch.Tensor) -> torch.Tensor:
        """Of a shape and type, holding anything.

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
        if not is_view(result, (args, kwargs)):
            raise NotRecordable(str(func))
        return result


def is_view(result: Any, inputs: Any) -> bool:
    """Whether an operator has made nothing new: its tensors lie in the memory of those that it was given."""
    return bool(_memories(result)) and _memories(result) <= _memories(inputs)


def _memories(values: Any) -> set[int]:
    """Of the tensors among them."""
    return {each.untyped_storage().data_ptr() for each in tree_leaves(values) if isinstance(each, torch.Tensor)}


class PassSize(NamedTuple):
    """What a forward pass is over."""

    sequences: int
    tokens: int
    outputs: int  # rows whose hidden states are needed: see OutputRows


class SizedPass:
    """A forward pass over any number of sequences and tokens, up to the most. What lies between its kernels stays where
    it is."""

    def __init__(
        self, forward: Callable[[PassSize], torch.Tensor], kernels: Kernels, most: tuple[int, int],
        memory: torch.Tensor,
    ) -> None:  # fmt: skip
        """
        Args:
            forward: a pass of a size, which reads what will be read then, in the same places; gives hidden states
                [tokens or outputs, hidden_size].
            most: sequences and tokens of a pass.
            memory: of `arena_memory`. Others may use it too, at other times.

        Raises:
            NotRecordable: it does more than to call kernels, or does something else in other sizes; or passes are too
                small.
        """
        sequences, tokens = most
        if tokens < _FEWEST_TOKENS:
            raise NotRecordable(f"a step of {tokens} tokens at most")
        # No two numbers of them are in proportion, and the last one has all rows, as the hidden states must.
        sizes = [PassSize(1, 3, 2), PassSize(min(2, sequences), 7, 5), PassSize(sequences, tokens, tokens)]
        noted = []
        for size in sizes:
            arena = Arena(memory, {size.tokens, size.outputs}, tokens)
            with kernels.recording() as calls, KernelsAlone(arena):
                self._hidden = forward(size)
            noted.append(calls)
        self._calls = SizedCalls(kernels.replay, noted, sizes)
        self._kept = forward  # the calls point at what it holds
        logger.debug("recorded %d calls of kernels; %d KiB lie between them", self._calls.count, arena.most >> 10)

    def run(self, size: PassSize) -> torch.Tensor:
        """Hidden states [outputs, hidden_size], there until the next pass; all of a pass that computes all rows must be
        outputs."""
        self._calls.replay(size)
        return self._hidden[: size.outputs]


def arena_memory() -> torch.Tensor:
    """For the passes of a model."""
    return zeros_when_touched((_ARENA_BYTES,), torch.uint8)


class NotedSteps:
    """Steps of a decoder, of any size up to a room's: one pass of those with adapters, and one of the others.

    A step's inputs are copied into buffers that stay where they are.
    """

    def __init__(
        self, forward: Callable[[Inputs], Callable[[], torch.Tensor]], kernels: Kernels, room: Room, nobodys_slot: int,
        adapters: StepAdapters, *, skips_rows: bool,
    ) -> None:  # fmt: skip
        """
        Args:
            forward: prepares a pass over such inputs.
            room: no more than MOST_TOKENS of it are used.
            nobodys_slot: see InputBuffers.
            adapters: of the rank.
            skips_rows: whether passes without adapters compute only output rows in their last layer.
        """
        self._skips_rows = skips_rows
        tokens = min(room.tokens, MOST_TOKENS)
        self._forward, self._kernels, self._adapters = forward, kernels, adapters
        self._most = min(room.sequences, tokens), tokens
        self._buffers = InputBuffers(room._replace(tokens=tokens), nobodys_slot)
        self._memory = arena_memory()
        self._passes: dict[bool, SizedPass | None] = {}  # by whether there are adapters; None: they cannot be recorded
        self._record(has_adapters=False)

    def run(self, batch: FlatBatch) -> torch.Tensor | None:
        """The hidden states of a batch's output rows; None for one that is run by the model's code."""
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
        prepared = []  # what is prepared for a pass must live as long as the calls

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
    """Kernels read lengths and contexts when they run."""
    longest = size.tokens - size.sequences + 1
    return Shape(size.sequences, size.tokens, longest, longest, outputs=size.outputs)
