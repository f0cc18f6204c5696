"""Conversations rendered by mistral-common match its own tokens, whatever users write."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.protocol.transcription.request import TranscriptionRequest
from mistral_common.tokens.tokenizers import image as mistral_image
from mistral_common.tokens.tokenizers.audio import Audio
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

from quire.errors import InvalidRequest
from quire.tokenizer.tekken import read_tekken
from tests.support.tekken import AUDIO, IMAGES, write_media_tekken, write_tekken, write_tekken_with_settings
from tokenizer_svc.rendered import Rendered
from tokenizer_svc.renderer import ChatRenderer

pytestmark = pytest.mark.asyncio(loop_scope="module")

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


@pytest_asyncio.fixture(scope="module", loop_scope="module")
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


async def test_thinking_is_not_its_matter(renderer: ChatRenderer) -> None:
    """Models without such a setting think as their system prompts say."""
    variables = {"reasoning_effort": "high", "enable_thinking": False, "thinking": False}
    expected = await render(renderer, ASKED)
    assert await render(renderer, ASKED, variables=variables) == expected
    assert await render(renderer, ASKED, default_effort="high") == expected


async def test_thinking_of_models_with_such_a_setting(tmp_path: Path) -> None:
    path = write_tekken_with_settings(tmp_path, ["none", "high"])
    assert read_tekken(tmp_path).tokenizer.token_to_id("[MODEL_SETTINGS]") == 22
    reference = MistralTokenizer.from_file(str(path))
    renderer = ChatRenderer({}, {}, timeout_seconds=10.0, max_chars=300, conversations=str(path))
    await renderer.start()
    high, on = {"reasoning_effort": "high"}, {"enable_thinking": True}
    # A default goes without saying where the model does not know it, whatever else the operator says about thinking.
    cases: list[tuple[dict[str, Any], str, str | None]] = [
        ({}, "", None), ({}, "medium", None), (on, "medium", None), ({}, "high", "high"),
        (high, "", "high"), (high | on, "medium", "high"), ({"reasoning_effort": "none"}, "high", "none"),
        ({"reasoning_effort": None}, "high", None),
    ]  # fmt: skip
    for variables, default, expected in cases:
        rendered = await render(renderer, ASKED, variables=variables, default_effort=default)
        request = ChatCompletionRequest.from_openai(messages=ASKED, reasoning_effort=expected)
        assert list(rendered.token_ids or ()) == reference.encode_chat_completion(request).tokens
        assert f'[MODEL_SETTINGS]{{"reasoning_effort": "{expected or "none"}"}}[/MODEL_SETTINGS]' in rendered.text
    for others in ({}, on):
        with pytest.raises(InvalidRequest, match=r"should be one of .*none.*high.*, got medium"):
            await render(renderer, ASKED, variables={"reasoning_effort": "medium"} | others, default_effort="high")
    await renderer.close()


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
        ([{"role": "user", "content": [{"type": "image"}]}], {}, "type 'image', which this model does not read"),
        (
            [{"role": "user", "content": [{"type": "video"}]}],
            {"placeholders": {"video": "[IMG]"}},
            "type 'video', which this model does not read",
        ),
        (
            [{"role": "user", "content": [{"type": "image"}]}],
            {"placeholders": {"image": "[IMG]"}},
            "Make sure to define a image encoder",
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


# Mistral's token for each embedding, and those that take the place of the only one: an image has one for its end too.
MEDIA = {"image": (10, [10, 13]), "audio": (24, [24] * 25)}
# As Mistral's package takes them. Reading files needs OpenCV or libsndfile there, but the tokens do not.
CHUNKS = {
    "image": {
        "type": "image_url",
        "image_url": {"url": "data:image/gif;base64,R0lGODlhAQABAAAAACwAAAAAAQABAAACAkQBADs="},
    },
    "audio": {"type": "audio_url", "audio_url": {"url": "any"}},
}


def with_medium(kind: str, medium: Any) -> list[dict[str, Any]]:
    texts = [{"type": "text", "text": text} for text in ("Look.", "Not [IMG] nor [AUDIO].")]
    return [{"role": "user", "content": [texts[0], medium, texts[1]]}]


def expanded(rendered: Rendered, kind: str) -> list[int]:
    single, tokens = MEDIA[kind]
    assert rendered.token_ids is not None
    place = rendered.token_ids.index(single)
    return [*rendered.token_ids[:place], *tokens, *rendered.token_ids[place + 1 :]]


@pytest.mark.parametrize("kind", MEDIA)
async def test_media_have_a_token_where_mistral_has_many(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_media_tekken(tmp_path, **{kind: {"image": IMAGES, "audio": AUDIO}[kind]})
    transcription = {"variables": {"transcription": "de"}, "placeholders": {kind: "any"}}
    renderer = ChatRenderer({}, {}, timeout_seconds=10.0, max_chars=300, conversations=str(path))
    await renderer.start()
    rendered = await render(renderer, with_medium(kind, {"type": kind}), placeholders={kind: "any"})
    with pytest.raises(InvalidRequest, match="for conversations with nothing but an audio") as caught:
        await render(renderer, with_medium(kind, {"type": kind}), **transcription)
    assert caught.value.parameter == "chat_template_kwargs"
    alone = [{"role": "user", "content": [{"type": "audio"}]}]
    spoken = await render(renderer, alone, **transcription) if kind == "audio" else None
    await renderer.close()

    monkeypatch.setattr(mistral_image, "transform_image", lambda *_: np.empty(0))
    monkeypatch.setattr(Audio, "_check_valid", lambda _: None)
    for source in ("from_raw_audio", "from_base64"):
        monkeypatch.setattr(Audio, source, lambda _: Audio(np.zeros(100), 16_000, "wav"))
    reference: Any = MistralTokenizer.from_file(str(path))
    request = ChatCompletionRequest.from_openai(messages=with_medium(kind, CHUNKS[kind]))
    assert expanded(rendered, kind) == reference.encode_chat_completion(request).tokens
    if spoken is not None:
        asked = TranscriptionRequest(model="", audio="any", language="de")
        assert expanded(spoken, kind) == reference.encode_transcription(asked).tokens
        assert spoken.text.endswith("[/INST]lang:de[TRANSCRIBE]")
