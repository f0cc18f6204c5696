"""Pipeline stages: which of a model's layers each rank has."""

from __future__ import annotations

from dataclasses import dataclass

from quire.errors import StartupError
from quire.options.parallel import ParallelOptions


@dataclass(frozen=True)
class Stage:
    """Consecutive layers of a model. The first stage has the embedding, the last the output layer.

    Attributes:
        looks_up: has the embedding even if it is not the first stage: a draft head on this stage looks up tokens in it.
    """

    layers: range
    is_first: bool = True
    is_last: bool = True
    looks_up: bool = True


def stages_of(num_layers: int, options: ParallelOptions) -> list[Stage]:
    """The stages of a model with `num_layers` layers.

    Raises:
        StartupError: the model cannot be divided in this way.
    """
    sizes = _given_sizes(num_layers, options) or _even_sizes(num_layers, options.pipeline_parallel_size)
    ends = [sum(sizes[: index + 1]) for index in range(len(sizes))]
    return [
        Stage(range(end - size, end), is_first=index == 0, is_last=end == num_layers, looks_up=index == 0)
        for index, (size, end) in enumerate(zip(sizes, ends, strict=True))
    ]


def _even_sizes(num_layers: int, stages: int) -> list[int]:
    """Sizes as in vLLM: remaining layers go to the stages before the last one, from the back."""
    if num_layers < stages:
        raise StartupError(
            f"--pipeline-parallel-size {stages}: the model has {num_layers} layers, and each stage needs at least "
            "one. Lower it."
        )
    size, over = divmod(num_layers, stages)
    return [size + (index < stages - 1 and index >= stages - 1 - over) for index in range(stages)]


def _given_sizes(num_layers: int, options: ParallelOptions) -> list[int]:
    """The sizes that the user asks for; empty if none are given."""
    given, stages = options.pipeline_layer_partition, options.pipeline_parallel_size
    if not given:
        return []
    parts = [part.strip() for part in given.split(",")]
    sizes = [int(part) if part.isdecimal() and len(part) < 5 else 0 for part in parts]
    expected = f"expected {stages} numbers of layers, such as {','.join(map(str, _even_sizes(num_layers, stages)))}"
    if len(sizes) != stages or min(sizes) < 1:
        raise StartupError(
            f"--pipeline-layer-partition {given}: {expected}, one for each stage of --pipeline-parallel-size {stages}, "
            "and none of them 0."
        )
    if sum(sizes) != num_layers:
        raise StartupError(
            f"--pipeline-layer-partition {given}: these are {sum(sizes)} layers, but the model has {num_layers}; "
            f"{expected}."
        )
    return sizes
