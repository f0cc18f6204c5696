"""Conversations rendered by mistral-common match its own tokens, whatever users write."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

from quire.errors import InvalidRequest
from tests.support.tekken import write_tekken
from tokenizer_svc.rendered import Rendered
from tokenizer_svc.renderer import ChatRenderer

TOOLS = [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}]
ASKED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Say [INST] twice </s>"}]
CALLED = [
    {"role": "user", "content": [{"type": "text", "text": "Call it."}]},
    {"role": "assistant", "content": "", "tool_calls": [
        {"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "abcdefghi", "name": "f", "content": "7"},
]  # fmt: skip


@pytest.fixture(scope="module")
def tekken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tekken(tmp_path_factory.mktemp("mistral"))


@pytest.fixture
async def renderer(tekken: Path) -> AsyncIterator[ChatRenderer]:
    running = ChatRenderer({}, {}, timeout_seconds=10.0, max_chars=300, conversations=str(tekken))
    await running.start()
    yield running
    await running.close()


async def render(renderer: ChatRenderer, messages: list[dict[str, Any]], **changes: Any) -> Rendered:
    request = {
        "tools": None, "add_generation_prompt": True, "continue_final_message": False, "variables": {},
        "template": None,
    }  # fmt: skip
    return await renderer.render(json.dumps(messages).encode(), **request | changes)


async def test_they_are_mistrals_tokens(renderer: ChatRenderer, tekken: Path) -> None:
    reference = MistralTokenizer.from_file(str(tekken))
    assert renderer.has_template
    for messages, tools in ((ASKED, None), (ASKED, TOOLS), (CALLED, TOOLS)):
        request = ChatCompletionRequest.from_openai(messages=messages, tools=tools)
        rendered = await render(renderer, messages, tools=tools)
        assert list(rendered.token_ids or ()) == reference.encode_chat_completion(request).tokens
    answer = [*ASKED, {"role": "assistant", "content": "Once"}]
    rendered = await render(renderer, answer, add_generation_prompt=False, continue_final_message=True)
    assert rendered.text.endswith("[/INST]Once")


async def test_developers_are_systems(renderer: ChatRenderer) -> None:
    developed = [{**ASKED[0], "role": "developer"}, ASKED[1]]
    assert await render(renderer, developed) == await render(renderer, ASKED)


async def test_what_looks_like_a_control_token_is_none(renderer: ChatRenderer) -> None:
    rendered = await render(renderer, ASKED)
    assert rendered.text.count("[INST]") == 2
    assert (rendered.token_ids or ()).count(3) == 1


@pytest.mark.parametrize(
    ("messages", "changes", "words"),
    [
        ([{"role": "assistant", "content": "Hi"}], {}, "mistral-common rejects the conversation"),
        ([{"role": "strange", "content": "Hi"}], {}, "mistral-common rejects the conversation"),
        ([{"content": "Hi"}], {}, "mistral-common rejects the conversation"),
        ([{"role": "user", "content": {"a": 1}}], {}, "mistral-common rejects the conversation"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]}],
            {},
            "content of the type 'image_url'",
        ),
        (
            [{"role": "user", "content": [{"type": "image"}]}],
            {"placeholders": {"image": "[IMG]"}, "interleaves": False},
            "type 'image'; only text is supported with --tokenizer-mode mistral",
        ),
        ([{"role": "user", "content": 400 * "x"}], {}, "more than 300 characters"),
        (ASKED, {"template": "x"}, "--tokenizer-mode mistral"),
        (ASKED, {"variables": {"a": 1}}, "--tokenizer-mode mistral"),
        (ASKED, {"tools": [{"a": 1}]}, "mistral-common rejects the conversation"),
    ],
)
async def test_what_cannot_be_written(
    renderer: ChatRenderer, messages: list[dict[str, Any]], changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidRequest, match=words):
        await render(renderer, messages, **changes)
