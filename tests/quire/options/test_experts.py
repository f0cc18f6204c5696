"""Contradictory options for experts."""

from __future__ import annotations

from typing import Any

import pytest

from quire.options.base import build
from quire.options.experts import EplbConfig, ExpertOptions


def options(**given: Any) -> ExpertOptions:
    return build(ExpertOptions, given)


def test_experts_stay_unless_they_are_to_move() -> None:
    assert options(enable_expert_parallel=True).balancing() is None
    moving = options(enable_expert_parallel=True, enable_eplb=True, eplb_config={"step_interval": 30})
    assert moving.balancing() == EplbConfig(window_size=1000, step_interval=30)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"enable_eplb": True}, "it needs --enable-expert-parallel"),
        ({"enable_expert_parallel": True, "eplb_config": {"num_redundant_experts": 1}}, "needs --enable-eplb"),
        ({"eplb_config": {"window_size": 0}}, "window_size"),
    ],
)
def test_what_is_wrong_is_named(given: dict[str, Any], words: str) -> None:
    with pytest.raises(Exception, match=words):
        options(**given).balancing()
