"""Images for pooling models: what reaches the engine of conversations and of what is compared, and what is refused."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio

from gateway.endpoints import pooled_inputs
from quire.options.media import MediaOptions
from quire.options.router import RouterOptions
from quire.options.server import GrpcServerOptions
from quire.options.tokenizer import TokenizerOptions
from quire.rpc.images import to_images
from quire.v1 import common_pb2
from router.app import Router
from tests.support.fake_engine import FakeEngine, FakeOptions
from tests.support.fake_pooling import CROSS_ENCODER, EMBEDDER, classes, embedding
from tests.support.gateway_stack import SECURITY, Gateway, gateway_before, running_tokenizer
from tests.support.vision_models import make_vision_model, png_bytes, random_image, reference_processor
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

CAT, DOT = random_image(60, 40, 1), random_image(28, 28, 3)  # 12 and 4 tokens
PLACE = "<|vision_start|><|image_pad|><|vision_end|>"
# As that of Qwen3-VL-Reranker: contents are strings, and an instruction is a variable or a system message.
PAIRS = (
    "{{ instruction | default('judge') }}|"
    "{% for role in ('query', 'document') %}"
    "{{ (messages | selectattr('role', 'eq', role) | first).content }}|{% endfor %}"
)


def part(image: Any) -> dict[str, Any]:
    return {
        "type": "image_url",
        "image_url": {"url": f"data:image/png;base64,{base64.b64encode(png_bytes(image)).decode()}"},
    }


def text(said: str) -> dict[str, str]:
    return {"type": "text", "text": said}


CAT_MESSAGE = {"role": "user", "content": [part(CAT), text("A cat.")]}


@dataclass
class Stack:
    """A gateway before an embedder and a cross-encoder that read images, and an embedder that reads text."""

    gateway: Gateway
    engines: dict[str, FakeEngine]
    processor: Any  # Transformers'

    async def post(self, path: str, body: Any) -> Any:
        response = await self.gateway.post(path, body)
        assert response.status_code == 200, response.text
        return response.json()

    async def refused(self, path: str, body: Any, *parts: str) -> dict[str, Any]:
        response = await self.gateway.post(path, body)
        assert response.status_code == 400, response.text
        error: dict[str, Any] = response.json()["error"]
        assert all(each in error["message"] for each in parts), error
        return error

    def inputs(self, model: str) -> list[common_pb2.PoolingInput]:
        """The inputs of the last request that the model's engine received."""
        return list(self.engines[model].pooling.received[-1].inputs)

    def ids(self, prompt: str, *images: Any) -> list[int]:
        """The tokens of a prompt by Transformers."""
        if not images:
            return list(self.processor.tokenizer.encode(prompt, add_special_tokens=False))
        return list(self.processor(text=[prompt], images=list(images), add_special_tokens=False)["input_ids"][0])

    def check(self, given: common_pb2.PoolingInput, expected: list[int], *sizes: int) -> None:
        """Compares the tokens of an input, and how many of them are of each image."""
        assert list(given.token_ids) == expected
        assert [image.num_tokens for image in to_images(given.images)] == list(sizes)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    folder = make_vision_model(tmp_path_factory.mktemp("qwen"), "qwen2_5_vl")
    kinds = {
        "seer": (EMBEDDER, True), "cross": (CROSS_ENCODER, True), "reader": (EMBEDDER, False),
        "ranker": (CROSS_ENCODER, True),
    }  # fmt: skip
    async with contextlib.AsyncExitStack() as exits:
        engines = {}
        for name, (info, accepts) in kinds.items():
            architecture = "JinaVLForRanking" if name == "ranker" else ""
            options = FakeOptions(
                models=(name,), pooling=info, step_seconds=0.001, accepts_images=accepts, architecture=architecture
            )
            engines[name] = await FakeEngine(options).start()
            exits.push_async_callback(engines[name].close)
        router = Router(
            RouterOptions(workers=tuple(engine.address for engine in engines.values())), GrpcServerOptions(), SECURITY
        )
        await router.start()
        exits.push_async_callback(router.close)
        tokenizer = await exits.enter_async_context(
            running_tokenizer(folder, tokenizer_options=TokenizerOptions(trust_request_chat_template=True))
        )
        gateway = await exits.enter_async_context(
            gateway_before(
                [f"127.0.0.1:{router.server.port}"], [f"127.0.0.1:{tokenizer.port}"],
                media=MediaOptions(limit_mm_per_prompt="image=2"),
            )
        )  # fmt: skip
        await eventually(lambda: len(gateway.context.fleet.models) == len(kinds), "a model is not known")
        yield Stack(gateway, engines, reference_processor(folder))
        assert gateway.context.statistics.num_live == 0


async def test_conversations(stack: Stack) -> None:
    known = [{"role": "user", "content": [{"type": "image"}, text("A cat.")]}]
    prompt = stack.processor.tokenizer.apply_chat_template(known, tokenize=False)
    ids = stack.ids(prompt, CAT)
    for path in ("/v1/embeddings", "/pooling"):
        answer = await stack.post(path, {"model": "seer", "messages": [CAT_MESSAGE]})
        (given,) = stack.inputs("seer")
        stack.check(given, ids, 12)
        (vector,) = answer["data"]
        assert vector.get("embedding", vector.get("data")) == pytest.approx(embedding(ids), abs=1e-6)
        assert answer["usage"]["prompt_tokens"] == len(ids)
    await stack.post(
        "/v1/embeddings", {"model": "seer", "messages": [[CAT_MESSAGE], [{"role": "user", "content": "x"}]]}
    )
    first, second = stack.inputs("seer")
    stack.check(first, ids, 12)
    assert not second.images


async def test_images_of_coheres_api(stack: Stack) -> None:
    known = [{"role": "user", "content": [{"type": "image"}]}]
    ids = stack.ids(stack.processor.tokenizer.apply_chat_template(known, tokenize=False), DOT)
    url = part(DOT)["image_url"]["url"]
    answer = await stack.post("/v2/embed", {"model": "seer", "images": [url]})
    (given,) = stack.inputs("seer")
    stack.check(given, ids, 4)
    assert answer["embeddings"]["float"] == [pytest.approx(embedding(ids), abs=1e-6)]
    inputs = [{"content": [text("A "), text("dot.")]}, {"content": [part(DOT)]}]
    answer = await stack.post("/v2/embed", {"model": "seer", "inputs": inputs})
    first, second = stack.inputs("seer")
    stack.check(first, stack.ids("A dot."))
    stack.check(second, ids, 4)
    assert answer["texts"] == ["A dot."]
    error = await stack.refused("/v2/embed", {"model": "reader", "images": [url]}, "images[0]", "reads text only")
    assert error["param"] == "images"
    await stack.refused("/v2/embed", {"model": "seer", "images": [url], "texts": ["x"]}, "texts, images or inputs")
    await stack.refused("/v2/embed", {"model": "seer", "inputs": [{"content": [{"type": "text"}]}]}, "content[0]")


async def test_contents_are_compared_as_they_are(stack: Stack) -> None:
    """Images first, and nothing between them and the text, as in vLLM."""
    documents = [{"content": [text("A"), text("B"), part(CAT)]}, "A dot.", {"content": [part(DOT)]}]
    expected = [stack.ids(f"{PLACE}A\nB", CAT), stack.ids("A dot."), stack.ids(PLACE, DOT)]
    query = stack.ids("Where?")

    def cosine(ids: list[int]) -> float:
        return sum(one * other for one, other in zip(embedding(query), embedding(ids), strict=True))

    answer = await stack.post("/score", {"model": "seer", "queries": "Where?", "documents": documents})
    for given, ids, sizes in zip(stack.inputs("seer"), [query, *expected], ((), (12,), (), (4,)), strict=True):
        stack.check(given, ids, *sizes)
    assert [each["score"] for each in answer["data"]] == pytest.approx([cosine(ids) for ids in expected], abs=1e-6)
    answer = await stack.post("/rerank", {"model": "seer", "query": "Where?", "documents": documents})
    by_index = {each["index"]: each for each in answer["results"]}
    assert [by_index[index]["relevance_score"] for index in range(3)] == pytest.approx(
        [cosine(ids) for ids in expected], abs=1e-6
    )
    assert by_index[1]["document"] == {"text": "A dot."}
    assert by_index[2]["document"] == {"multi_modal": [part(DOT)]}


async def test_texts_may_be_contents(stack: Stack) -> None:
    await stack.post("/score", {"model": "reader", "text_1": {"content": [text("A"), text("B")]}, "text_2": ["A\nB"]})
    one, other = stack.inputs("reader")
    assert list(one.token_ids) == list(other.token_ids) == stack.ids("A\nB")


async def test_pairs_go_through_the_score_template(stack: Stack) -> None:
    body = {
        "model": "cross", "query": {"content": [part(DOT)]}, "chat_template": PAIRS, "instruction": "say",
        "documents": ["A dot.", {"content": [part(CAT), text("!")]}],
    }  # fmt: skip
    expected = [stack.ids(f"say|{PLACE}|A dot.|", DOT), stack.ids(f"say|{PLACE}|{PLACE}!|", DOT, CAT)]
    answer = await stack.post("/rerank", body)
    first, second = stack.inputs("cross")
    stack.check(first, expected[0], 4)
    stack.check(second, expected[1], 4, 12)
    scores = {each["index"]: each["relevance_score"] for each in answer["results"]}
    assert [scores[0], scores[1]] == pytest.approx([classes(ids, 1)[0] for ids in expected], abs=1e-6)
    await stack.refused("/rerank", {name: body[name] for name in ("model", "query", "documents")}, "score template")


async def test_a_reranker_may_have_the_document_first(stack: Stack) -> None:
    template = "".join(
        f"{{{{ (messages | selectattr('role', 'eq', '{role}') | first).content }}}}" for role in ("document", "query")
    )
    body = {"model": "ranker", "chat_template": template, "query": {"content": [part(DOT)]}}
    await stack.post("/rerank", body | {"documents": [{"content": [part(CAT)]}]})
    (given,) = stack.inputs("ranker")
    stack.check(given, stack.ids(PLACE * 2, CAT, DOT), 12, 4)


async def test_what_is_refused(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {"content": [part(CAT)]}
    score = {"model": "seer", "text_1": "x", "text_2": [seen]}
    error = await stack.refused("/score", score | {"model": "reader"}, "text_2[0].content[0]", "reads text only")
    assert error["param"] == "text_2"
    await stack.refused("/v1/embeddings", {"model": "reader", "messages": [CAT_MESSAGE]}, "messages[0].content[0]")
    await stack.refused("/score", score | {"text_2": [{"content": [part(CAT)] * 3}]}, "at most 2")
    await stack.refused("/score", score | {"text_2": [{}]}, "text_2[0]", "text or content")
    await stack.refused("/score", score | {"text_2": {"content": [{"type": "smell"}]}}, "text_2.content[0]", "'smell'")
    await stack.refused("/score", score | {"max_tokens_per_doc": 3}, "cut texts")
    error = await stack.refused("/score", score | {"truncate_prompt_tokens": 3}, "leave truncate_prompt_tokens out")
    assert error["param"] == "truncate_prompt_tokens"
    settings = {"mm_processor_kwargs": {"size": {}, "do_resize": False}}
    await stack.refused("/score", score | settings, "--trust-request-mm-kwargs")
    await stack.refused("/score", score | settings | {"text_2": "x"}, "takes text only")
    await stack.refused("/v1/embeddings", {"model": "seer", "input": "x"} | settings, "takes text only")
    monkeypatch.setattr(pooled_inputs, "_MOST_CONTENT_BYTES", 1000)
    await stack.refused("/score", score, "more than 1000 bytes")
