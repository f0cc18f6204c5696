"""Coalesced updates of one choice carry the same content as the separate updates."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.answers.coalescing import Coalescer
from gateway.answers.deltas import (
    ChoiceUpdate,
    Content,
    Delta,
    Finish,
    FinishReason,
    PromptScore,
    Reasoning,
    TokenScore,
    ToolCall,
)
from tests.support.gateway_stack import GatewayStack

UPDATES = st.builds(
    ChoiceUpdate,
    st.integers(0, 2),
    st.lists(st.sampled_from([Content("a"), Content("b"), Reasoning("r"), ToolCall(0, "{")]), max_size=3).map(tuple),
    st.lists(st.integers(0, 9), max_size=3).map(tuple),
)


def pieces(deltas: list[Delta]) -> list[tuple[type, Any]]:
    """Splits deltas into characters, so that differently chunked streams compare equal."""
    found: list[tuple[type, Any]] = []
    for delta in deltas:
        match delta:
            case Content(text) | Reasoning(text):
                found += [(type(delta), character) for character in text]
            case _:
                found.append((type(delta), delta))
    return found


@given(updates=st.lists(UPDATES, max_size=40), interval=st.integers(2, 7))
def test_nothing_is_lost_or_out_of_order(updates: list[ChoiceUpdate], interval: int) -> None:
    coalescer = Coalescer(interval)
    found = [whole for update in updates if (whole := coalescer.add(update))]
    rest = list(coalescer.rest())
    for choice in range(3):
        before = [update for update in updates if update.index == choice]
        after = [update for update in [*found, *rest] if update.index == choice]
        assert [t for update in after for t in update.token_ids] == [t for update in before for t in update.token_ids]
        given, told = ([delta for update in some for delta in update.deltas] for some in (before, after))
        assert pieces(given) == pieces(told)
        counts = [len(update.token_ids) for update in after if update not in rest]
        first = next((number for number, count in enumerate(counts) if count), len(counts))
        assert all(interval <= count < interval + 3 for count in counts[first + 1 :])


def test_a_choices_end_and_scores() -> None:
    coalescer = Coalescer(10)
    score, prompt = TokenScore((1,), (-0.5,), (b"a",), 1), (PromptScore((3,), (-1.0,), 1),)
    assert coalescer.add(ChoiceUpdate(0, (), ())) == ChoiceUpdate(0, (), ())  # no token yet
    assert coalescer.add(ChoiceUpdate(0, (), (1,), (score,), prompt)) is not None
    assert coalescer.add(ChoiceUpdate(0, (Content("x"),), (2,), (score,))) is None
    end = Finish(FinishReason.STOP)
    whole = coalescer.add(ChoiceUpdate(0, (Content("y"), end), (3,), (score,)))
    assert whole == ChoiceUpdate(0, (Content("xy"), end), (2, 3), (score, score))
    assert not list(coalescer.rest())


@pytest.mark.asyncio(loop_scope="module")
async def test_streams(gateway: GatewayStack) -> None:
    """Each choice's chunks after the first hold `stream_interval` tokens, and usage counts all tokens."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {
        "prompt": "A",
        "max_tokens": 11,
        "n": 2,
        "stream": True,
        "return_token_ids": True,
        "stream_options": options,
    }
    whole = (await gateway.complete(prompt="A", max_tokens=11, n=2, return_token_ids=True))["choices"]
    *chunks, last, done = await gateway.events("/v1/completions", body | {"stream_interval": 4})
    assert done == "[DONE]"
    for choice in whole:
        own = [part for chunk in chunks for part in chunk["choices"] if part["index"] == choice["index"]]
        assert [len(part["token_ids"]) for part in own] == [1, 4, 4, 2]
        assert "".join(part["text"] for part in own) == choice["text"]
        assert own[-1]["finish_reason"] == "length"
    assert last["usage"]["completion_tokens"] == 22
    chat = {"messages": [{"role": "user", "content": "A"}], "max_tokens": 6, "logprobs": True}
    *chunks, done = await gateway.events("/v1/chat/completions", chat | {"stream": True, "stream_interval": 100})
    logprobs = [part["logprobs"] for chunk in chunks for part in chunk["choices"] if part.get("logprobs")]
    assert [len(part["content"]) for part in logprobs] == [1, 5]


@pytest.mark.asyncio(loop_scope="module")
async def test_a_server_may_have_an_interval_of_its_own(gateway: GatewayStack, monkeypatch: pytest.MonkeyPatch) -> None:
    options = dataclasses.replace(gateway.context.options, stream_interval=4)
    monkeypatch.setattr(gateway.context, "options", options)
    body = {"prompt": "A", "max_tokens": 11, "stream": True, "return_token_ids": True}
    for fields, sizes in (({}, [1, 4, 4, 2]), ({"stream_interval": 6}, [1, 6, 4])):
        *chunks, _ = await gateway.events("/v1/completions", body | fields)
        assert [len(chunk["choices"][0]["token_ids"]) for chunk in chunks] == sizes
