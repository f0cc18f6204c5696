"""The parallel layout: the size of each kind of parallelism, and the groups of ranks that work together."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from quire.errors import StartupError
from quire.options.parallel import ParallelOptions


class Purpose(Enum):
    """What the ranks of a group communicate about."""

    TENSOR = auto()  # partial sums of a layer
    PIPELINE = auto()  # hidden states, from one stage to the next
    DATA = auto()  # only who runs a pass: each data rank has its own requests
    EXPERT = auto()  # shares of a layer's experts
    DECODE_CONTEXT = auto()  # attention over parts of one sequence's cache


@dataclass(frozen=True)
class Coordinates:
    """A rank's coordinates, from 0 along each axis."""

    data: int
    pipeline: int
    tensor: int


@dataclass(frozen=True)
class ParallelLayout:
    """The sizes of each kind of parallelism.

    Ranks are numbered by tensor first, then by pipeline, then by data, so that neighbors share layers.

    Attributes:
        tensor: number of ranks that share each layer.
        pipeline: number of stages of layers.
        data: number of groups of ranks that have their own requests.
        expert: number of parts that a layer's experts are divided into, over the tensor * data ranks of a stage. Ranks
            with the same part share the features of its experts; with 1, all ranks do.
        decode_context: number of ranks of a tensor group that share the tokens of a cache whose heads cannot be split
            further.

    Raises:
        ValueError: a size is below 1, or does not divide what it is a part of.
    """

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    expert: int = 1
    decode_context: int = 1

    def __post_init__(self) -> None:
        if min(self.tensor, self.pipeline, self.data, self.expert, self.decode_context) < 1:
            raise ValueError(f"{self}: sizes must be at least 1")
        if self.tensor * self.data % self.expert:
            raise ValueError(
                f"{self}: experts cannot be divided evenly among the {self.tensor * self.data} ranks of a stage"
            )
        if self.tensor % self.decode_context:
            raise ValueError(f"{self}: the {self.tensor} ranks of a tensor group cannot be divided evenly")

    @property
    def num_ranks(self) -> int:
        """The number of ranks of the worker."""
        return self.tensor * self.pipeline * self.data

    def coordinates(self, rank: int) -> Coordinates:
        """The coordinates of a rank."""
        rest, tensor = divmod(rank, self.tensor)
        data, pipeline = divmod(rest, self.pipeline)
        return Coordinates(data, pipeline, tensor)

    def rank(self, at: Coordinates) -> int:
        """The rank at these coordinates."""
        return (at.data * self.pipeline + at.pipeline) * self.tensor + at.tensor

    def groups(self, purpose: Purpose) -> list[tuple[int, ...]]:
        """All groups for a purpose, each in the order of its ranks. Every rank is in exactly one."""
        found: dict[tuple[int, ...], list[int]] = {}
        for rank in range(self.num_ranks):
            found.setdefault(self._shared(rank, purpose), []).append(rank)
        return [tuple(ranks) for ranks in found.values()]

    def group_of(self, rank: int, purpose: Purpose) -> tuple[int, ...]:
        """The ranks in the group of `rank`."""
        return next(group for group in self.groups(purpose) if rank in group)

    def _shared(self, rank: int, purpose: Purpose) -> tuple[int, ...]:
        """What all ranks of this rank's group have in common."""
        at = self.coordinates(rank)
        return {
            Purpose.TENSOR: (at.data, at.pipeline),
            Purpose.PIPELINE: (at.data, at.tensor),
            Purpose.DATA: (at.pipeline, at.tensor),
            Purpose.EXPERT: (at.pipeline,),
            Purpose.DECODE_CONTEXT: (at.data, at.pipeline, at.tensor // self.decode_context),
        }[purpose]


def layout_of(options: ParallelOptions) -> ParallelLayout:
    """The layout that the options describe.

    Raises:
        StartupError: they contradict each other.
    """
    tensor, context = options.tensor_parallel_size, options.decode_context_parallel_size
    if tensor % context:
        raise StartupError(
            f"--decode-context-parallel-size {context} does not divide --tensor-parallel-size {tensor}: it adds no "
            "ranks, but uses those of tensor parallelism that would cache the same heads. Choose a divisor."
        )
    expert = tensor if options.experts.enable_expert_parallel else 1
    return ParallelLayout(tensor, options.pipeline_parallel_size, expert=expert, decode_context=context)
