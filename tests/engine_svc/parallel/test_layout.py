"""Every rank has one place, and the groups of each purpose partition the ranks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_svc.parallel.layout import Coordinates, ParallelLayout, Purpose, layout_of
from quire.options.parallel import ParallelOptions

sizes = st.integers(1, 4)


@st.composite
def layouts(draw: st.DrawFn) -> ParallelLayout:
    tensor, pipeline, data = draw(sizes), draw(sizes), draw(sizes)

    def divisor(total: int) -> int:
        return draw(st.sampled_from([size for size in range(1, total + 1) if total % size == 0]))

    return ParallelLayout(tensor, pipeline, data, divisor(tensor * data), divisor(tensor))


@given(layouts())
def test_every_rank_has_one_place_and_every_place_one_rank(layout: ParallelLayout) -> None:
    places = [layout.coordinates(rank) for rank in range(layout.num_ranks)]
    assert len(set(places)) == layout.num_ranks
    assert [layout.rank(place) for place in places] == list(range(layout.num_ranks))
    assert all(
        0 <= place.data < layout.data and 0 <= place.pipeline < layout.pipeline and 0 <= place.tensor < layout.tensor
        for place in places
    )


@given(layouts(), st.sampled_from(Purpose))
def test_groups_of_a_purpose_divide_the_ranks(layout: ParallelLayout, purpose: Purpose) -> None:
    size = {
        Purpose.TENSOR: layout.tensor, Purpose.PIPELINE: layout.pipeline, Purpose.DATA: layout.data,
        Purpose.EXPERT: layout.tensor * layout.data, Purpose.DECODE_CONTEXT: layout.decode_context,
    }[purpose]  # fmt: skip
    groups = layout.groups(purpose)
    assert sorted(rank for group in groups for rank in group) == list(range(layout.num_ranks))
    assert {len(group) for group in groups} == {size}
    assert all(list(group) == sorted(group) for group in groups)
    assert all(layout.group_of(rank, purpose) == group for group in groups for rank in group)


@given(layouts())
def test_groups_meet_where_they_should(layout: ParallelLayout) -> None:
    for rank in range(layout.num_ranks):
        group = {purpose: set(layout.group_of(rank, purpose)) for purpose in Purpose}
        assert group[Purpose.TENSOR] & group[Purpose.PIPELINE] & group[Purpose.DATA] == {rank}
        assert group[Purpose.DECODE_CONTEXT] <= group[Purpose.TENSOR] <= group[Purpose.EXPERT]
        assert group[Purpose.DATA] <= group[Purpose.EXPERT]


def test_the_ranks_of_a_layer_are_neighbours() -> None:
    layout = ParallelLayout(tensor=4, pipeline=2, data=2, expert=4, decode_context=2)
    assert layout.groups(Purpose.TENSOR) == [(0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11), (12, 13, 14, 15)]
    assert layout.groups(Purpose.PIPELINE)[:2] == [(0, 4), (1, 5)]
    assert layout.groups(Purpose.DATA)[:2] == [(0, 8), (1, 9)]
    assert layout.groups(Purpose.EXPERT) == [(0, 1, 2, 3, 8, 9, 10, 11), (4, 5, 6, 7, 12, 13, 14, 15)]
    assert layout.groups(Purpose.DECODE_CONTEXT)[:2] == [(0, 1), (2, 3)]
    assert layout.coordinates(13) == Coordinates(data=1, pipeline=1, tensor=1)


def test_options_describe_a_layout() -> None:
    assert layout_of(ParallelOptions(tensor_parallel_size=4)) == ParallelLayout(tensor=4)
    assert layout_of(ParallelOptions(2, 3)) == ParallelLayout(tensor=2, pipeline=3)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [({"tensor": 0}, "at least 1"), ({"tensor": 2, "expert": 3}, "experts"), ({"tensor": 4, "decode_context": 3}, "4")],
)
def test_sizes_that_do_not_fit_are_refused(wrong: dict[str, int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ParallelLayout(**wrong)
