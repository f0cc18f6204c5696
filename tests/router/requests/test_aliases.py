"""Aliases of models."""

from __future__ import annotations

from collections import Counter

import pytest

from quire.errors import StartupError
from router.requests.aliases import Aliases
from tests.router.conftest import StartEngine, StartRouter
from tests.support.router_client import generation


def resolved(aliases: Aliases, model: str, request_id: str = "r", session_id: str = "") -> str:
    return aliases.resolve(model, session_id or request_id)


def test_shares_are_kept_and_conversations_too() -> None:
    aliases = Aliases.parse(["chat=v1:9,v2:1", "old=org/model:latest"])
    counts = Counter(resolved(aliases, "chat", f"r{number}") for number in range(5000))
    assert 400 < counts["v2"] < 600
    assert counts["v1"] + counts["v2"] == 5000
    assert len({resolved(aliases, "chat", f"r{number}", "session") for number in range(50)}) == 1
    assert resolved(aliases, "old") == "org/model:latest"
    assert resolved(aliases, "other") == "other"
    assert aliases.names == {"chat": ["v1", "v2"], "old": ["org/model:latest"]}


@pytest.mark.parametrize("texts", [["chat"], ["=v1"], ["chat="], ["chat=v1:0"], ["a=b", "a=c"], ["a=b", "b=c"]])
def test_malformed_ones_are_refused(texts: list[str]) -> None:
    with pytest.raises(StartupError, match="--model-alias"):
        Aliases.parse(texts)


async def test_requests_reach_the_model_behind_the_name(start_engine: StartEngine, start_router: StartRouter) -> None:
    old, new = await start_engine(models=("v1",)), await start_engine(models=("v2",))
    running = await start_router(old.address, new.address, model_alias=("chat=v1:1,v2:1",))
    async with running.client.session() as session:
        for number in range(40):
            request = generation([number], 2, model="chat", request_id=f"r{number}")
            assert (await (await session.start(number, request)).wait_ended()).error is None
    assert {request.model for request in old.record.started} == {"v1"}
    assert {request.model for request in new.record.started} == {"v2"}
    assert min(len(old.record.started), len(new.record.started)) > 5
