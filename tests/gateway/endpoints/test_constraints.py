"""A request's output constraint reaches every engine that works on it, and is compiled once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from quire.structured.base import constraint_key
from tests.support.gateway_stack import GatewayStack
from tokenizer_svc.child import Message
from tokenizer_svc.child_pool import ChildPool

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHAT = ("/v1/chat/completions", {"messages": [{"role": "user", "content": "A"}], "max_tokens": 2})
COMPLETION = ("/v1/completions", {"prompt": "A", "max_tokens": 2})
both = pytest.mark.parametrize(("path", "body"), [CHAT, COMPLETION], ids=["chat", "completions"])


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[Message]:
    """Messages that the tokenizer service was asked to compile."""
    messages: list[Message] = []
    ask = ChildPool.ask

    async def counted(pool: ChildPool, request: Message) -> Message:
        if "form" in request.fields:
            messages.append(request)
        return await ask(pool, request)

    monkeypatch.setattr(ChildPool, "ask", counted)
    return messages


async def test_many_prompts_have_one_constraint(gateway: GatewayStack, compiled: list[Message]) -> None:
    gateway.engine.record.started.clear()
    own = {"structured_outputs": {"regex": "many[ab]"}}
    await gateway.complete(prompt=[[65], [66], [67]], n=2, temperature=1, **own)
    constraints = [start.constraint for start in gateway.engine.record.started]
    assert len(constraints) == 3
    assert len(compiled) == 1
    assert {constraint.backend for constraint in constraints} == {"guidance"}
    assert {constraint.key for constraint in constraints} == {constraint_key("guidance", constraints[0].grammar)}


@both
async def test_those_that_come_together_and_later_share_it(
    gateway: GatewayStack, compiled: list[Message], path: str, body: dict[str, Any]
) -> None:
    own = body | {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"const": path}}}}
    answers = await asyncio.gather(*(gateway.post(path, own) for _ in range(8)))
    assert {answer.status_code for answer in answers} == {200}
    await gateway.events(path, own)
    assert len(compiled) == 1


@both
async def test_plain_requests_compile_nothing(
    gateway: GatewayStack, compiled: list[Message], path: str, body: dict[str, Any]
) -> None:
    gateway.engine.record.started.clear()
    assert (await gateway.post(path, body | {"response_format": {"type": "text"}})).status_code == 200
    assert not compiled
    assert not any(start.HasField("constraint") for start in gateway.engine.record.started)


@both
@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"guided_regex": "a("}, "guided_regex", "guided_regex: The constraint cannot be followed"),
        ({"guided_json": {"type": "strin"}}, "guided_json", "Invalid type"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice", "0 choices"),
        ({"guided_regex": "a", "guided_decoding_backend": "other"}, "guided_regex", "'other' does not exist"),
        ({"guided_choice": ["a"], "guided_regex": "a"}, "guided_choice", "guided_regex and guided_choice"),
    ],
)
async def test_what_is_refused_names_its_field(
    gateway: GatewayStack, path: str, body: dict[str, Any], fields: dict[str, Any], param: str, message: str
) -> None:
    for more in ({}, {"stream": True}):
        answer = await gateway.post(path, body | fields | more)
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, param)
        assert message in error["message"]
