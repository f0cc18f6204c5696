"""Which weights computed the tokens of a choice."""

from __future__ import annotations

from gateway.answers.weight_versions import WeightVersions
from gateway.protocol.common import WeightSpan


def test_spans_end_where_the_answer_ends() -> None:
    versions = WeightVersions()
    for version, start in (("a", 0), ("a", 1), ("b", 2), ("a", 6)):
        versions.add(version, start)
    assert versions.spans(8) == (WeightSpan("a", 0, 2), WeightSpan("b", 2, 6), WeightSpan("a", 6, 8))
    assert versions.spans(4) == (WeightSpan("a", 0, 2), WeightSpan("b", 2, 4))
    assert versions.spans(0) == ()


def test_a_choice_may_end_before_its_first_token() -> None:
    assert WeightVersions().spans(0) == ()
