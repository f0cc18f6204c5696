"""Expected output lengths: one for each model."""

from __future__ import annotations

import pytest

from router.requests import output_lengths
from router.requests.output_lengths import OutputLengths
from tests.router.conftest import StartEngine, StartRouter
from tests.support.router_client import generation


def test_each_model_has_its_own() -> None:
    lengths = OutputLengths()
    unknown = lengths.expected("new")
    for _ in range(500):
        lengths.finished("terse", 1.0)
        lengths.finished("thinker", 5000.0)
    assert lengths.expected("terse") == pytest.approx(1.0, rel=0.1)
    assert lengths.expected("thinker") == pytest.approx(5000.0, rel=0.1)
    assert lengths.expected("new") == unknown


def test_the_models_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_lengths, "_MOST_MODELS", 2)
    lengths = OutputLengths()
    for model in ("a", "b", "a", "c"):
        lengths.finished(model, 0.0)
    assert len(lengths) == 2
    assert lengths.expected("b") == lengths.expected("new")
    assert lengths.expected("a") < lengths.expected("c") < lengths.expected("new")


async def test_a_request_counts_for_its_model(start_engine: StartEngine, start_router: StartRouter) -> None:
    """Its sequences count as their mean, and `max_tokens` bounds what is expected."""
    engines = [await start_engine(models=(model,)) for model in ("terse", "thinker")]
    running = await start_router(*(engine.address for engine in engines))
    expected = []
    for number, (model, limit) in enumerate([("terse", 2), ("terse", None), ("thinker", None), ("thinker", 1)]):
        async with running.client.session() as session:
            request = generation([1], limit, 2, model=model, request_id=f"{number}")
            output = await (await session.start(1, request)).wait_tokens()
            if limit:
                await output.wait_ended()
        decision = running.router.table.decisions.find(f"{number}")
        assert decision is not None
        expected.append(decision.request.output_tokens)
    assert expected == [2, pytest.approx(128 - 0.02 * 126), 128, 1]
