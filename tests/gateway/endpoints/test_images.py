"""Conversations with images, in each API: what reaches the engine, what is counted, and what is refused."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio

from gateway.requests.choice_room import ChoiceRoom
from quire.block_hash import block_keys
from quire.images import contents_of
from quire.options.media import MediaOptions
from quire.options.tokenizer import TokenizerOptions
from quire.rpc.images import to_images
from quire.v1 import common_pb2
from tests.support.fake_engine import FakeOptions
from tests.support.gateway_stack import Gateway, GatewayStack, gateway_before, running_gateway
from tests.support.vision_models import make_vision_model, png_bytes, random_image, reference_processor
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

BLOCK = 16
CAT, DOG, DOT = random_image(60, 40, 1), random_image(60, 40, 2), random_image(28, 28, 3)  # 12, 12 and 4 tokens
CHAT = {"model": "fake", "max_tokens": 2}
RESPONSE = {"model": "fake", "max_output_tokens": 2}
FEW = {"size": {"shortest_edge": 784, "longest_edge": 784}}


def encoded(image: Any) -> str:
    return base64.b64encode(png_bytes(image)).decode()


def url(image: Any) -> str:
    return f"data:image/png;base64,{encoded(image)}"


def part(image: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url(image), "detail": "auto"}}


def asked(*content: Any) -> list[dict[str, Any]]:
    """A conversation of one message: its texts and images."""
    return [{"role": "user", "content": [each if isinstance(each, str) else part(each) for each in content]}]


MESSAGES = asked("Look at this cat: ", CAT, "and at this dot: ", DOT, "What are they?")


@dataclass
class Stack:
    """A gateway before a vision model, and one that accepts settings for it and but one image."""

    gateway: GatewayStack
    trusting: Gateway
    reference: Any  # Transformers' processor

    @property
    def started(self) -> list[common_pb2.Generation]:
        return self.gateway.engine.record.started

    async def post(self, path: str, body: Any, gateway: Gateway | None = None) -> dict[str, Any]:
        response = await (gateway or self.gateway).post(path, body)
        assert response.status_code == 200, response.text
        return dict(response.json())

    async def generation(self, path: str, body: Any) -> common_pb2.Generation:
        """What the engine receives for a request."""
        await self.post(path, CHAT | body)
        return self.started[-1]

    async def refused(self, path: str, body: Any, *words: str, gateway: Gateway | None = None) -> dict[str, Any]:
        """The error of a request of which the engine hears nothing."""
        count = len(self.started)
        response = await (gateway or self.gateway).post(path, CHAT | body)
        assert response.status_code == 400, response.text
        assert len(self.started) == count
        error: dict[str, Any] = response.json()["error"]
        assert all(each in error["message"] for each in words), error
        return error

    def expected(self, messages: Sequence[Any], images: Sequence[Any]) -> list[int]:
        """The prompt's tokens by Transformers."""
        known = [
            {**message, "content": [{"type": "text", "text": each} if isinstance(each, str) else {"type": "image"}
                                    for each in message["content"]]}
            for message in messages
        ]  # fmt: skip
        text = self.reference.tokenizer.apply_chat_template(known, add_generation_prompt=True, tokenize=False)
        inputs = self.reference(text=[text], images=list(images), add_special_tokens=False)
        return list(inputs["input_ids"][0])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    folder = make_vision_model(tmp_path_factory.mktemp("qwen"), "qwen2_5_vl")
    engine = FakeOptions(step_seconds=0.001, accepts_images=True, block_size=BLOCK)
    trusting = MediaOptions(trust_request_mm_kwargs=True, limit_mm_per_prompt="image=1")
    async with running_gateway(
        folder, engine, tokenizer_options=TokenizerOptions(), enable_prompt_tokens_details=True, enable_scale_out=True
    ) as running:
        places = ([f"127.0.0.1:{running.router.server.port}"], [f"127.0.0.1:{running.tokenizer.port}"])
        async with gateway_before(*places, media=trusting, enable_scale_out=True) as other:
            yield Stack(running, other, reference_processor(folder))
        assert running.context.pipeline.num_live == 0


def same(one: common_pb2.Generation, other: common_pb2.Generation) -> bool:
    """Whether the prompts are the same."""
    return (one.prompt_token_ids, one.prompt_block_keys, list(one.images)) == (
        other.prompt_token_ids, other.prompt_block_keys, list(other.images),
    )  # fmt: skip


async def test_an_adapter_may_be_for_images(stack: Stack) -> None:
    engine, models = stack.gateway.engine, stack.gateway.context.fleet
    for name, is_default in (("image", True), ("video", True), ("other", False)):
        engine.adapters[name] = common_pb2.AdapterInfo(name=name, path="/x", revision=name * 8, is_default=is_default)
    engine.adapters_version += 1
    await eventually(lambda: "image" in models.models, "the adapters are not known")
    try:
        generation = await stack.generation("/v1/chat/completions", {"messages": asked("What is it?")})
        assert generation.model == "fake"
        answer = await stack.post("/v1/chat/completions", CHAT | {"messages": MESSAGES})
        assert (answer["model"], stack.started[-1].model) == ("image", "image")
        contents = contents_of(to_images(stack.started[-1].images))
        tokens = list(stack.started[-1].prompt_token_ids)
        assert list(stack.started[-1].prompt_block_keys) == block_keys(
            tokens, BLOCK, contents=contents, adapter="image" * 8
        )
        named = await stack.generation("/v1/chat/completions", {"model": "other", "messages": MESSAGES})
        assert named.model == "other"
    finally:
        engine.adapters.clear()
        engine.adapters_version += 1
        await eventually(lambda: "image" not in models.models, "the adapters stay")


async def test_what_the_engine_receives(stack: Stack) -> None:
    generation = await stack.generation("/v1/chat/completions", {"messages": MESSAGES})
    token_ids = list(generation.prompt_token_ids)
    assert token_ids == stack.expected(MESSAGES, [CAT, DOT])
    images = to_images(generation.images)
    image_token = stack.reference.image_token_id
    assert [position for position, token in enumerate(token_ids) if token == image_token] == [
        position for image in images for position in range(image.offset, image.end)
    ]
    assert [image.num_tokens for image in images] == [12, 4]
    assert {each.name for image in images for each in image.inputs} == {"pixel_values", "image_grid_thw"}
    assert generation.prompt_block_size == BLOCK
    assert list(generation.prompt_block_keys) == block_keys(token_ids, BLOCK, "", contents_of(images))
    plain = await stack.generation("/v1/chat/completions", {"messages": asked("No image")})
    assert not plain.images


async def test_an_url_may_be_a_string(stack: Stack) -> None:
    as_object = await stack.generation("/v1/chat/completions", {"messages": asked("A", CAT)})
    content = ["A", {"type": "image_url", "image_url": url(CAT)}]
    as_string = await stack.generation("/v1/chat/completions", {"messages": [{"role": "user", "content": content}]})
    assert same(as_object, as_string)
    other = await stack.generation("/v1/chat/completions", {"messages": asked("A", DOG)})
    assert other.prompt_token_ids == as_object.prompt_token_ids
    assert not same(as_object, other)


async def test_what_is_cached_depends_on_the_image(stack: Stack) -> None:
    async def cached(*content: Any) -> int:
        answer = await stack.post("/v1/chat/completions", CHAT | {"messages": asked(*content)})
        return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

    start = "Something that takes more than one block of tokens before the image. "
    assert await cached(start, DOG, "?" * BLOCK) < BLOCK * 6
    whole = await cached(start, DOG, "?" * BLOCK)
    up_to_image = await cached(start, CAT, "?" * BLOCK)
    image = stack.started[-1].images[0]
    assert up_to_image == image.offset // BLOCK * BLOCK
    assert BLOCK < up_to_image < whole


@pytest.mark.parametrize("fields", [{"stream": True}, {"n": 2, "temperature": 1.0}], ids=["stream", "n"])
async def test_answers(stack: Stack, fields: dict[str, Any]) -> None:
    count = len(stack.started)
    if "stream" in fields:
        assert (await stack.gateway.events("/v1/chat/completions", CHAT | {"messages": MESSAGES}))[-1] == "[DONE]"
    else:
        answer = await stack.post("/v1/chat/completions", CHAT | fields | {"messages": MESSAGES})
        assert len(answer["choices"]) == 2
    (generation,) = stack.started[count:]
    assert [image.num_tokens for image in generation.images] == [12, 4]


async def test_conversations_of_a_batch_have_their_own_images(stack: Stack) -> None:
    count = len(stack.started)
    conversations = [asked("A", CAT), asked("B"), asked(DOT, "C", DOG)]
    await stack.post("/v1/chat/completions/batch", CHAT | {"messages": conversations})
    together = sorted(stack.started[count:], key=lambda generation: generation.request_id)
    alone = [await stack.generation("/v1/chat/completions", {"messages": each}) for each in conversations]
    assert all(same(one, other) for one, other in zip(together, alone, strict=True))
    assert [len(generation.images) for generation in together] == [1, 0, 2]


async def test_a_beam_search_has_the_images(stack: Stack) -> None:
    count = len(stack.started)
    fields = {"use_beam_search": True, "n": 2, "max_tokens": 1, "messages": MESSAGES}
    answer = await stack.post("/v1/chat/completions", CHAT | fields)
    assert len(answer["choices"]) == 2
    (step,) = stack.started[count:]
    assert same(step, await stack.generation("/v1/chat/completions", {"messages": MESSAGES}))


async def test_tokens_of_images_are_counted(stack: Stack) -> None:
    expected = stack.expected(MESSAGES, [CAT, DOT])
    counted = await stack.post("/tokenize", {"messages": MESSAGES})
    assert (counted["count"], counted["tokens"]) == (len(expected), expected)
    answer = await stack.post("/v1/chat/completions", CHAT | {"messages": MESSAGES})
    assert answer["usage"]["prompt_tokens"] == len(expected)
    blocks = [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": encoded(CAT)}}]
    told = await stack.post("/v1/messages/count_tokens", CHAT | {"messages": [{"role": "user", "content": blocks}]})
    assert told == {"input_tokens": len(stack.expected(asked(CAT), [CAT]))}


CALL = {"id": "t", "type": "function", "function": {"name": "f", "arguments": "{}"}}
# A tool answers with an image, and the user sends another one.
WITH_TOOL = [
    {"role": "user", "content": "A"},
    {"role": "assistant", "content": "B", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "t", "name": "f", "content": ["Seen:", part(DOT)]},
    {"role": "user", "content": [part(CAT), "C"]},
]


async def test_images_in_anthropics_api(stack: Stack) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": encoded(CAT)}
    for given in (source, {"type": "url", "url": url(CAT)}):
        content = [{"type": "text", "text": "A"}, {"type": "image", "source": given}, {"type": "text", "text": "B"}]
        found = await stack.generation("/v1/messages", {"messages": [{"role": "user", "content": content}]})
        assert same(found, await stack.generation("/v1/chat/completions", {"messages": asked("A", CAT, "B")}))
    alone = {"messages": [{"role": "user", "content": [{"type": "image", "source": source}]}]}
    found = await stack.generation("/v1/messages", alone)
    assert same(found, await stack.generation("/v1/chat/completions", {"messages": asked(CAT)}))
    dot = {"type": "image", "source": source | {"data": encoded(DOT)}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "Seen:"}, dot]}
    conversation = [
        {"role": "user", "content": "A"},
        {"role": "assistant", "content": [{"type": "text", "text": "B"},
                                          {"type": "tool_use", "id": "t", "name": "f", "input": {}}]},
        {"role": "user", "content": [result, {"type": "image", "source": source}, {"type": "text", "text": "C"}]},
    ]  # fmt: skip
    found = await stack.generation("/v1/messages", {"messages": conversation})
    assert [image.num_tokens for image in found.images] == [4, 12]
    assert same(found, await stack.generation("/v1/chat/completions", {"messages": WITH_TOOL}))


@pytest.mark.parametrize(
    ("role", "block", "words"),
    [
        ("assistant", {"source": {"type": "url", "url": url(DOT)}}, "type 'image', which is not supported here"),
        ("user", {}, "messages[0].content[0].source must be"),
        ("user", {"source": {"type": "file", "file_id": "x"}}, "messages[0].content[0].source must be"),
        ("user", {"source": {"type": "base64", "data": encoded(DOT)}}, "messages[0].content[0].source must be"),
        (
            "user",
            {"source": {"type": "base64", "media_type": "text/plain", "data": encoded(DOT)}},
            "must begin like data:image/png;base64,",
        ),
        (
            "user",
            {"source": {"type": "base64", "media_type": "image/png", "data": "?"}},
            "messages[0].content[0] is not valid base64",
        ),
        ("user", {"source": {"type": "url", "url": "http://127.0.0.1/x.png"}}, "--allowed-media-domains"),
    ],
)
async def test_what_is_wrong_in_anthropics_api(stack: Stack, role: str, block: Any, words: str) -> None:
    body = {"messages": [{"role": role, "content": [{"type": "image"} | block]}]}
    await stack.refused("/v1/messages", body, words)
    await stack.refused("/v1/messages/count_tokens", body, words)


async def test_errors_name_places_of_the_request(stack: Stack) -> None:
    """Not of the chat that it becomes, in which messages before the image are fewer or more."""
    wrong: dict[str, Any] = {"type": "image", "source": {"type": "url", "url": "nowhere"}}
    text = {"type": "text", "text": "A"}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [text, wrong]}
    call = {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]}
    for content, place in (([text, wrong], "content[1]"), ([result, text], "content[0].content[1]")):
        messages = [{"role": "user", "content": "A"}, call, {"role": "user", "content": content}]
        body = {"system": "S", "messages": messages}
        await stack.refused("/v1/messages", body, f"messages[2].{place} is not a URL")
    parts = [{"type": "input_text", "text": "A"}, {"type": "input_image", "image_url": "x"}]
    contents = (("user", "A"), ("assistant", "B"), ("user", parts))
    items = [{"role": role, "content": content} for role, content in contents]
    body = {"instructions": "S", "input": items}
    error = await stack.refused("/v1/responses", body, "input[2].content[1] is not a URL")
    assert error["param"] == "input"


def said(role: str, *content: Any) -> dict[str, Any]:
    """A message item of the Responses API."""
    parts = [
        {"type": "input_text", "text": each} if isinstance(each, str)
        else {"type": "input_image", "image_url": url(each), "detail": "auto", "file_id": None}
        for each in content
    ]  # fmt: skip
    return {"type": "message", "role": role, "content": parts}


async def test_images_in_the_responses_api(stack: Stack) -> None:
    found = await stack.generation("/v1/responses", RESPONSE | {"input": [said("user", "A", CAT, "B")]})
    assert same(found, await stack.generation("/v1/chat/completions", {"messages": asked("A", CAT, "B")}))
    items = [
        {"role": "user", "content": "A"},
        {"role": "assistant", "content": "B"},
        {"type": "function_call", "call_id": "t", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "t", "output": said("tool", "Seen:", DOT)["content"]},
        said("user", CAT, "C"),
    ]
    found = await stack.generation("/v1/responses", RESPONSE | {"input": items})
    assert same(found, await stack.generation("/v1/chat/completions", {"messages": WITH_TOOL}))


@pytest.mark.parametrize(
    ("item", "words"),
    [
        (
            {"role": "user", "content": [{"type": "input_image", "file_id": "file-1"}]},
            "input[0].content[0] names a file, but Quire stores none",
        ),
        ({"role": "user", "content": [{"type": "input_image"}]}, "input[0].content[0].image_url must be a string"),
        (said("assistant", DOT), "input[0].content[0] is of type 'input_image'"),
        (said("developer", DOT), "input[0].content[0] is of type 'input_image'"),
        (
            {"role": "user", "content": [{"type": "input_image", "image_url": "x"}]},
            "input[0].content[0] is not a URL",
        ),
    ],
)
async def test_what_is_wrong_in_the_responses_api(stack: Stack, item: Any, words: str) -> None:
    error = await stack.refused("/v1/responses", {"input": [item]}, words)
    assert error["param"] == "input"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions/render", {"messages": MESSAGES}),
        (
            "/v1/messages/render",
            {"messages": [{"role": "user", "content": [
                {"type": "image", "source": {"type": "url", "url": url(DOT)}},
            ]}]},
        ),
        ("/v1/responses/render", {"input": [said("user", DOT)]}),
    ],
)  # fmt: skip
async def test_conversations_with_images_are_not_rendered_as_tokens_only(stack: Stack, path: str, body: Any) -> None:
    await stack.refused(path, body, "onversation with images, videos or audio cannot be rendered")


async def test_a_body_has_room_for_the_files_that_a_conversation_may_have(stack: Stack) -> None:
    assert stack.gateway.context.max_body_bytes > 64 * 2**20
    body = json.dumps(CHAT | {"messages": MESSAGES}) + " " * (9 * 2**20)
    response = await stack.gateway.client.post(
        "/v1/chat/completions", content=body, headers={"content-type": "application/json"}
    )
    assert response.status_code == 200, response.text


async def test_images_are_not_cut(stack: Stack) -> None:
    length = len(stack.expected(MESSAGES, [CAT, DOT]))
    for limit in (length, -1):
        body = {"messages": MESSAGES, "truncate_prompt_tokens": limit}
        assert len((await stack.generation("/v1/chat/completions", body)).prompt_token_ids) == length
    body = {"messages": MESSAGES, "truncate_prompt_tokens": length - 1}
    error = await stack.refused(
        "/v1/chat/completions", body, f"has {length} tokens, and its images, videos and audio cannot be cut"
    )
    assert error["param"] == "truncate_prompt_tokens"


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([{"role": "user", "content": [part(CAT) | {"image_url": {"url": "data:image/png;base64,eA=="}}]}],
         "cannot be decoded"),
        (asked("What is <|image_pad|>?", CAT), "has written 2 image placeholders"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "cat.png"}}]}],
         "messages[0].content[0] is not a URL"),
    ],
)  # fmt: skip
async def test_what_is_wrong_with_images(stack: Stack, messages: Any, words: str) -> None:
    for path in ("/v1/chat/completions", "/tokenize"):
        error = await stack.refused(path, {"messages": messages}, words)
        assert error["param"] == "messages"


async def test_the_number_of_images_is_limited(stack: Stack) -> None:
    await stack.post("/v1/chat/completions", CHAT | {"messages": asked(CAT)}, stack.trusting)
    for path in ("/v1/chat/completions", "/tokenize"):
        words = ("has 2 images; at most 1", "--limit-mm-per-prompt")
        await stack.refused(path, {"messages": MESSAGES}, *words, gateway=stack.trusting)


async def test_settings_of_a_request(stack: Stack) -> None:
    body = {"messages": asked("A", CAT), "mm_processor_kwargs": FEW}
    for path in ("/v1/chat/completions", "/tokenize"):
        error = await stack.refused(path, body, "--trust-request-mm-kwargs")
        assert error["param"] == "mm_processor_kwargs"
        for neutral in (None, {}):
            await stack.post(path, CHAT | body | {"mm_processor_kwargs": neutral})
        await stack.refused(path, body | {"mm_processor_kwargs": [1]}, "object")
    usual = (await stack.post("/tokenize", body | {"mm_processor_kwargs": None}, stack.trusting))["count"]
    smaller = (await stack.post("/tokenize", body, stack.trusting))["count"]
    assert smaller == usual - 10
    await stack.post("/v1/chat/completions", CHAT | body, stack.trusting)
    assert [image.num_tokens for image in stack.started[-1].images] == [2]
    nonsense = body | {"mm_processor_kwargs": {"nonsense": 1}}
    error = await stack.refused("/v1/chat/completions", nonsense, "mm_processor_kwargs", gateway=stack.trusting)
    assert error["param"] == "mm_processor_kwargs"


async def test_settings_where_there_are_no_images(stack: Stack) -> None:
    """Not even a server that accepts them in chats ignores them elsewhere."""
    for path in ("/v1/completions", "/v1/completions/render", "/tokenize"):
        body = {"prompt": "A", "mm_processor_kwargs": FEW}
        for gateway in (stack.gateway, stack.trusting):
            error = await stack.refused(path, body, "mm_processor_kwargs is refused", "text only", gateway=gateway)
            assert error["param"] == "mm_processor_kwargs"
        for neutral in (None, {}):
            response = await stack.gateway.post(path, CHAT | body | {"mm_processor_kwargs": neutral})
            assert response.status_code == 200, response.text


async def test_images_under_way_are_bounded(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    generation = await stack.generation("/v1/chat/completions", {"messages": MESSAGES})
    size = sum(image.num_bytes for image in to_images(generation.images))
    for free, status in ((size, 200), (size - 1, 503)):
        content = ChoiceRoom(2 * free, "bytes of images and embeddings")
        monkeypatch.setattr(stack.gateway.context.pipeline, "_content_room", content)
        for _ in range(2):  # a caller may have half of it, and gives it back
            response = await stack.gateway.post("/v1/chat/completions", CHAT | {"messages": MESSAGES})
            assert response.status_code == status, response.text
    assert "bytes of images and embeddings" in response.json()["error"]["message"]


async def test_a_model_that_reads_text_only(gateway: GatewayStack) -> None:
    bodies: dict[str, Any] = {
        "/v1/chat/completions": {"messages": asked("A", DOT)}, "/tokenize": {"messages": asked("A", DOT)},
        "/v1/chat/completions/batch": {"messages": [asked("A", DOT)]},
        "/v1/messages": {"messages": [{"role": "user", "content": [
            {"type": "text", "text": "A"}, {"type": "image", "source": {"type": "url", "url": url(DOT)}},
        ]}]},
        "/v1/responses": {"input": [said("user", "A", DOT)]},
    }  # fmt: skip
    for path, body in bodies.items():
        response = await gateway.post(path, CHAT | body)
        assert response.status_code == 400, response.text
        assert "content[1] is an image, but this model reads text only" in response.json()["error"]["message"]
