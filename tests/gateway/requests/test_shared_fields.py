"""Each field of a chat works in the other two APIs of conversations, or is refused by name."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from gateway.protocol.chat import ChatCompletionRequest
from gateway.protocol.common import ConversationFields
from gateway.protocol.messages import MessagesRequest
from gateway.protocol.responses import ResponsesRequest
from gateway.requests import anthropic, responses
from quire.errors import InvalidRequest
from tests.support.for_each import for_each
from tests.support.gateway_stack import GatewayStack

SAMPLING = {"stop_token_ids": [70], "min_tokens": 1, "guided_choice": ["AB"], "priority": 3}
BODIES = [
    ("/v1/responses", {"input": "A", "max_output_tokens": 9}),
    ("/v1/messages", {"messages": [{"role": "user", "content": "A"}], "max_tokens": 9}),
]


def chat_of_response(body: ConversationFields) -> ChatCompletionRequest:
    assert isinstance(body, ResponsesRequest)
    responses.check(body)
    return responses.chat_of(body, [], [{"role": "user", "content": "A"}], 100)


@for_each("name", ConversationFields.__struct_fields__)
@pytest.mark.parametrize(
    ("body", "chat_of"),
    [
        (ResponsesRequest(input="A"), chat_of_response),
        (MessagesRequest(messages=[{"role": "user", "content": "A"}], max_tokens=9), anthropic.chat_of),
    ],
)
def test_no_field_is_ignored(body: Any, chat_of: Callable[[Any], ChatCompletionRequest], name: str) -> None:
    asked = copy.copy(body)
    setattr(asked, name, {"asks": "for something"})
    try:
        reached = getattr(chat_of(asked), name) == {"asks": "for something"}
    except InvalidRequest as error:
        reached = error.parameter == name
    assert reached


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(("path", "body"), BODIES)
async def test_they_reach_the_engine(gateway: GatewayStack, path: str, body: dict[str, Any]) -> None:
    response = await gateway.post(path, body | SAMPLING)
    assert response.status_code == 200, response.text
    started = gateway.engine.record.started[-1]
    assert (list(started.sampling.stop_token_ids), started.sampling.min_tokens) == ([70], 1)
    assert (started.HasField("constraint"), started.priority) == (True, 3)


@pytest.mark.asyncio(loop_scope="module")
async def test_long_names_of_callers_are_taken(gateway: GatewayStack) -> None:
    """Claude Code's has about 160 characters."""
    (response, chat), (message, told) = BODIES
    for path, body in ((response, chat | {"user": "u" * 500}), (message, told | {"metadata": {"user_id": "u" * 500}})):
        assert (await gateway.post(path, body)).status_code == 200
