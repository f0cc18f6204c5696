"""Layers are split into stages: evenly, as requested, or refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_svc.parallel.stages import stages_of
from quire.errors import StartupError
from quire.options.parallel import ParallelOptions


def options(stages: int, partition: str | None = None) -> ParallelOptions:
    return ParallelOptions(pipeline_parallel_size=stages, pipeline_layer_partition=partition)


@given(st.integers(1, 8), st.integers(0, 40))
def test_every_layer_is_in_one_stage(stages: int, more: int) -> None:
    found = stages_of(stages + more, options(stages))
    assert [layer for stage in found for layer in stage.layers] == list(range(stages + more))
    sizes = [len(stage.layers) for stage in found]
    assert max(sizes) - min(sizes) <= 1
    assert sizes[-1] == min(sizes)
    assert [stage.is_first for stage in found] == [index == 0 for index in range(stages)]
    assert [stage.is_last for stage in found] == [index == stages - 1 for index in range(stages)]


@pytest.mark.parametrize(
    ("layers", "stages", "sizes"),
    [(22, 2, [11, 11]), (23, 2, [12, 11]), (6, 4, [1, 2, 2, 1]), (5, 4, [1, 1, 2, 1]), (7, 4, [2, 2, 2, 1])],
)
def test_what_is_over_goes_before_the_last(layers: int, stages: int, sizes: list[int]) -> None:
    assert [len(stage.layers) for stage in stages_of(layers, options(stages))] == sizes


def test_a_partition_is_taken_as_it_is_given() -> None:
    assert [stage.layers for stage in stages_of(22, options(2, "10, 12"))] == [range(10), range(10, 22)]


@pytest.mark.parametrize(
    ("layers", "stages", "partition", "words"),
    [
        (3, 4, None, "--pipeline-parallel-size 4: the model has 3 layers"),
        (22, 2, "10,11", "these are 21 layers, but the model has 22; expected 2 numbers of layers, such as 11,11"),
        (22, 2, "22", "one for each stage"),
        (22, 2, "22,0", "none of them 0"),
        (22, 2, "ten,12", "10,12|11,11"),
        (22, 2, "-1,23", "expected 2 numbers"),
        (22, 2, "9" * 5000 + ",1", "expected 2 numbers"),
    ],
)
def test_what_cannot_be_cut_is_refused(layers: int, stages: int, partition: str | None, words: str) -> None:
    with pytest.raises(StartupError, match=words):
        stages_of(layers, options(stages, partition))
