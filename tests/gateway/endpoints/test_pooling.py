"""The endpoints of pooling models: several models behind one gateway, with fake engines that return known values."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import math
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import pytest_asyncio

from quire.options.router import RouterOptions
from quire.options.server import GrpcServerOptions
from quire.v1 import common_pb2
from router.app import Router
from tests.support.fake_engine import FakeEngine, FakeOptions
from tests.support.fake_pooling import (
    CLASSIFIER,
    CROSS_ENCODER,
    EMBEDDER,
    LATE_INTERACTION,
    MATRYOSHKA,
    SIZE,
    classes,
    embedding,
    token_embeddings,
    values,
)
from tests.support.gateway_stack import SECURITY, Gateway, gateway_before, running_tokenizer
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

KINDS = {
    "embedder": EMBEDDER, "matryoshka": MATRYOSHKA, "classifier": CLASSIFIER, "cross": CROSS_ENCODER,
    "late": LATE_INTERACTION, "writer": None,
}  # fmt: skip


@dataclass
class Stack:
    """A gateway and one engine per model."""

    gateway: Gateway
    engines: dict[str, FakeEngine]

    async def post(self, path: str, body: Any, **headers: str) -> Any:
        response = await self.gateway.post(path, body, **headers)
        assert response.status_code == 200, response.text
        return response.json()

    async def refused(self, path: str, body: Any, *parts: str, status: int = 400) -> dict[str, Any]:
        response = await self.gateway.post(path, body)
        assert response.status_code == status, response.text
        error: dict[str, Any] = response.json()["error"]
        assert all(part in error["message"] for part in parts), error
        return error

    async def ids(self, text: str) -> list[int]:
        return list((await self.post("/tokenize", {"prompt": text, "model": "writer"}))["tokens"])

    def inputs(self, model: str) -> list[common_pb2.PoolingInput]:
        """The inputs of the last request that the model's engine received."""
        return list(self.engines[model].pooling.received[-1].inputs)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tokenizer_folder: Path) -> AsyncIterator[Stack]:
    async with contextlib.AsyncExitStack() as exits:
        engines = {}
        for name, info in KINDS.items():
            engines[name] = await FakeEngine(FakeOptions(models=(name,), pooling=info, step_seconds=0.001)).start()
            exits.push_async_callback(engines[name].close)
        workers = tuple(engine.address for engine in engines.values())
        router = Router(RouterOptions(workers=workers), GrpcServerOptions(), SECURITY)
        await router.start()
        exits.push_async_callback(router.close)
        tokenizer = await exits.enter_async_context(running_tokenizer(tokenizer_folder))
        gateway = await exits.enter_async_context(
            gateway_before([f"127.0.0.1:{router.server.port}"], [f"127.0.0.1:{tokenizer.port}"])
        )
        await eventually(lambda: len(gateway.context.fleet.models) == len(KINDS), "a model is not known")
        yield Stack(gateway, engines)
        assert gateway.context.statistics.num_live == 0
        assert not len(router.core.pooling)


async def test_vectors_of_every_form_of_input(stack: Stack) -> None:
    hello, hi = await stack.ids("hello"), await stack.ids("hi")
    for given, expected in (
        ("hello", [hello]), (["hello", "hi"], [hello, hi]), (hello, [hello]), ([hello, hi], [hello, hi]),
    ):  # fmt: skip
        answer = await stack.post("/v1/embeddings", {"model": "embedder", "input": given})
        assert answer["id"].startswith("embd-")
        assert (answer["object"], answer["model"]) == ("list", "embedder")
        assert [each["index"] for each in answer["data"]] == list(range(len(expected)))
        for each, ids in zip(answer["data"], expected, strict=True):
            assert each["object"] == "embedding"
            assert each["embedding"] == pytest.approx(embedding(ids), abs=1e-6)
        tokens = sum(map(len, expected))
        assert answer["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0}


async def test_openais_own_client(stack: Stack) -> None:
    """The OpenAI client requests base64 by default and decodes it."""
    async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{stack.gateway.port}/v1", api_key="none") as client:
        answer = await client.embeddings.create(model="embedder", input=["hello", "hi"])
        for each, text in zip(answer.data, ("hello", "hi"), strict=True):
            assert each.embedding == pytest.approx(embedding(await stack.ids(text)), abs=1e-6)
        cut = await client.embeddings.create(model="matryoshka", input="hi", dimensions=2, encoding_format="float")
        assert cut.data[0].embedding == pytest.approx(embedding(await stack.ids("hi"), 2), abs=1e-6)
        whole = await client.embeddings.create(model="embedder", input="hi", dimensions=SIZE)
        assert whole.data[0].embedding == pytest.approx(embedding(await stack.ids("hi")), abs=1e-6)
        with pytest.raises(openai.BadRequestError, match="not trained for shorter vectors"):
            await client.embeddings.create(model="embedder", input="hi", dimensions=2)
        with pytest.raises(openai.BadRequestError, match="the model supports 2, 3"):
            await client.embeddings.create(model="matryoshka", input="hi", dimensions=4)


async def test_conversations(stack: Stack) -> None:
    messages = [{"role": "user", "content": "hi"}]
    text = "<|im_start|>user\nhi<|im_end|>\n"
    answer = await stack.post("/v1/embeddings", {"model": "embedder", "messages": messages})
    assert answer["data"][0]["embedding"] == pytest.approx(embedding(await stack.ids(text)), abs=1e-6)
    several = {"model": "embedder", "messages": [messages, messages], "add_generation_prompt": True}
    answer = await stack.post("/pooling", {**several, "task": "embed"})
    expected = embedding(await stack.ids(text + "<|im_start|>assistant\n"))
    assert [each["data"] for each in answer["data"]] == [pytest.approx(expected, abs=1e-6)] * 2
    await stack.refused("/v1/embeddings", {"model": "embedder", "messages": [messages, "x"]}, "messages")
    await stack.refused("/v1/embeddings", {"model": "embedder", "messages": [messages, messages[0]]}, "one kind")


async def test_what_is_too_long_is_cut_where_that_is_asked_for(stack: Stack) -> None:
    ids = await stack.ids("hello")
    long = "hello " * 1000
    for fields, expected in (
        ({"truncate_prompt_tokens": 3}, ids[:3]), ({"truncate_prompt_tokens": 3, "truncation_side": "left"}, ids[-3:]),
        ({"truncate_prompt_tokens": 30}, ids),
    ):  # fmt: skip
        for given in ("hello", ids):
            await stack.post("/v1/embeddings", {"model": "embedder", "input": given} | fields)
            assert list(stack.inputs("embedder")[0].token_ids) == expected
    for given in (long, await stack.ids(long)):
        error = await stack.refused("/v1/embeddings", {"model": "embedder", "input": given}, "4096 tokens")
        assert (error["code"], error["param"]) == (400, "input")
        await stack.post("/v1/embeddings", {"model": "embedder", "input": given, "truncate_prompt_tokens": -1})
        assert len(stack.inputs("embedder")[0].token_ids) == 4096


async def test_bytes(stack: Stack) -> None:
    expected = [embedding(await stack.ids(text)) for text in ("hello", "hi")]
    body = {"model": "embedder", "input": ["hello", "hi"]}
    answer = await stack.post("/v1/embeddings", body | {"encoding_format": "base64", "endianness": "big"})
    for each, vector in zip(answer["data"], expected, strict=True):
        assert struct.unpack(">4f", base64.b64decode(each["embedding"])) == pytest.approx(vector, abs=1e-6)
    whole = await stack.gateway.post("/v1/embeddings", body | {"encoding_format": "bytes", "embed_dtype": "float16"})
    assert whole.headers["content-type"] == "application/octet-stream"
    told = json.loads(whole.headers["metadata"])
    assert told["usage"]["prompt_tokens"] == 7
    for item, vector in zip(told["data"], expected, strict=True):
        assert (item["shape"], item["embed_dtype"], item["endianness"]) == ([4], "float16", "native")
        part = whole.content[item["start"] : item["end"]]
        assert struct.unpack("4e", part) == pytest.approx(vector, abs=1e-3)
    alone = await stack.gateway.post("/v1/embeddings", body | {"encoding_format": "bytes_only"})
    assert "metadata" not in alone.headers
    assert struct.unpack("8f", alone.content) == pytest.approx(expected[0] + expected[1], abs=1e-6)


async def test_pooling_tells_what_the_model_makes(stack: Stack) -> None:
    ids = await stack.ids("hello")
    answer = await stack.post("/pooling", {"model": "embedder", "input": "hello"})  # uses the model's first task
    assert (answer["object"], answer["data"][0]["object"]) == ("list", "pooling")
    assert answer["data"][0]["data"] == pytest.approx(embedding(ids), abs=1e-6)
    answer = await stack.post("/pooling", {"model": "embedder", "input": "hello", "task": "token_embed"})
    assert answer["data"][0]["data"] == [pytest.approx(row, abs=1e-6) for row in token_embeddings(ids)]
    answer = await stack.post("/pooling", {"model": "embedder", "input": "hello", "use_activation": False})
    assert answer["data"][0]["data"] == pytest.approx(values(sum(ids), 4), abs=1e-6)
    answer = await stack.post("/pooling", {"model": "classifier", "input": "hello", "task": "token_classify"})
    assert answer["data"][0]["data"] == [pytest.approx(classes([each], 3), abs=1e-6) for each in ids]
    await stack.refused(
        "/pooling", {"model": "classifier", "input": "a", "task": "embed"}, "not produce embeddings", "classify"
    )
    await stack.refused("/pooling", {"model": "classifier", "data": {}}, "plugins")


async def test_classes(stack: Stack) -> None:
    answer = await stack.post("/classify", {"model": "classifier", "input": ["hello", "hi"]})
    assert answer["id"].startswith("classify-")
    for each, text in zip(answer["data"], ("hello", "hi"), strict=True):
        expected = classes(await stack.ids(text), 3)
        assert each["probs"] == pytest.approx(expected, abs=1e-6)
        assert each["label"] == ["bad", "fair", "good"][expected.index(max(expected))]
        assert each["num_classes"] == 3
    raw = await stack.post("/classify", {"model": "classifier", "input": "hi", "use_activation": False})
    assert raw["data"][0]["probs"] == pytest.approx(values(sum(await stack.ids("hi")), 3), abs=1e-6)


async def test_scores_of_a_cross_encoder(stack: Stack) -> None:
    query, documents = await stack.ids("q?"), [await stack.ids(text) for text in ("one", "two!")]
    expected = [classes([*query, *each], 1, [0] * len(query) + [1] * len(each))[0] for each in documents]
    for first, second in (("text_1", "text_2"), ("data_1", "data_2"), ("queries", "documents"), ("queries", "items")):
        answer = await stack.post("/v1/score", {"model": "cross", first: "q?", second: ["one", "two!"]})
        assert [each["score"] for each in answer["data"]] == pytest.approx(expected, abs=1e-6)
    assert list(stack.inputs("cross")[1].token_type_ids) == [0] * 2 + [1] * 4
    own = await stack.post("/score", {"model": "cross", "text_1": ["q?", "q?"], "text_2": ["one", "two!"]})
    assert [each["score"] for each in own["data"]] == pytest.approx(expected, abs=1e-6)
    assert own["data"][0]["object"] == "score"
    assert own["usage"]["prompt_tokens"] == sum(map(len, documents)) + 2 * len(query)
    await stack.post("/score", {"model": "cross", "text_1": "q?", "text_2": "two!", "truncate_prompt_tokens": 4})
    assert list(stack.inputs("cross")[0].token_ids) == query + documents[1][:2]
    await stack.post("/score", {"model": "cross", "text_1": "q?", "text_2": "two!", "max_tokens_per_doc": 1})
    assert list(stack.inputs("cross")[0].token_ids) == query + documents[1][:1]
    await stack.refused("/score", {"model": "cross", "text_1": ["a", "b"], "text_2": ["c"] * 3}, "cannot be paired")
    await stack.refused("/score", {"model": "cross", "text_1": "a"}, "text_1 and text_2")
    await stack.refused("/score", {"model": "cross", "text_1": "a", "text_2": "b", "instruction": "Judge."}, "template")
    await stack.refused("/score", {"model": "classifier", "text_1": "a", "text_2": "b"}, "not produce embeddings")


async def test_scores_by_vectors(stack: Stack) -> None:
    texts = ["one", "two", "three"]
    query, documents = await stack.ids("q?"), [await stack.ids(text) for text in texts]
    answer = await stack.post("/score", {"model": "embedder", "text_1": "q?", "text_2": texts})
    a = embedding(query)
    expected = [sum(x * y for x, y in zip(a, embedding(each), strict=True)) for each in documents]
    assert [each["score"] for each in answer["data"]] == pytest.approx(expected, abs=1e-6)
    assert answer["usage"]["prompt_tokens"] == len(query) + sum(map(len, documents))

    answer = await stack.post("/score", {"model": "late", "text_1": "q?", "text_2": texts})
    marked = token_embeddings(await stack.ids("Qq?"))
    expected = []
    for text in texts:
        rows = token_embeddings(await stack.ids(f"D{text}"))
        expected.append(sum(max(sum(map(math.prod, zip(a, b, strict=True))) for b in rows) for a in marked))
    assert [each["score"] for each in answer["data"]] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
async def test_ranking(stack: Stack, path: str) -> None:
    documents = ["one", {"text": "two"}, "three"]
    body = {"model": "cross", "query": "q?", "documents": documents}
    answer = await stack.post(path, body)
    scored = await stack.post("/score", {"model": "cross", "text_1": "q?", "text_2": ["one", "two", "three"]})
    scores = [each["score"] for each in scored["data"]]
    order = sorted(range(3), key=lambda index: -scores[index])
    assert [each["index"] for each in answer["results"]] == order
    assert [each["relevance_score"] for each in answer["results"]] == pytest.approx(sorted(scores, reverse=True))
    assert [each["document"]["text"] for each in answer["results"]] == [["one", "two", "three"][i] for i in order]
    tokens = scored["usage"]["total_tokens"]
    assert answer["usage"]["total_tokens"] == tokens
    assert answer["meta"] == {"billed_units": {"input_tokens": tokens}, "api_version": {"version": "2"}}
    best = await stack.post(path, body | {"top_n": 1, "return_documents": False})
    assert best["results"] == [{"index": order[0], "relevance_score": pytest.approx(max(scores))}]
    await stack.refused(path, body | {"top_n": -1}, "top_n")
    await stack.refused(path, body | {"documents": []}, "documents has 0")


async def test_ranking_by_vectors_tells_queries_and_documents_apart(stack: Stack) -> None:
    await stack.post("/rerank", {"model": "matryoshka", "query": "q?", "documents": ["one"]})
    inputs = [list(each.token_ids) for each in stack.inputs("matryoshka")]
    assert inputs == [await stack.ids("Qq?"), await stack.ids("one")]


async def test_coheres_vectors(stack: Stack) -> None:
    ids = await stack.ids("Qhi")
    body = {"model": "matryoshka", "texts": ["hi"], "input_type": "search_query"}
    answer = await stack.post("/v2/embed", body | {"embedding_types": ["float", "base64"]})
    assert answer["response_type"] == "embeddings_by_type"
    assert answer["texts"] == ["hi"]
    assert answer["embeddings"]["float"] == [pytest.approx(embedding(ids), abs=1e-6)]
    raw = base64.b64decode(answer["embeddings"]["base64"][0])
    assert struct.unpack("4f", raw) == pytest.approx(embedding(ids), abs=1e-6)
    assert answer["meta"] == {"api_version": {"version": "2"}, "billed_units": {"input_tokens": 3}}
    first = await stack.post("/v1/embed", body | {"truncate": None})  # as LangChain sends it
    assert (first["response_type"], first["texts"]) == ("embeddings_floats", ["hi"])
    assert first["embeddings"] == answer["embeddings"]["float"]
    assert first["meta"] == answer["meta"] | {"api_version": {"version": "1"}}
    named = await stack.post("/v1/embed", body | {"embedding_types": ["float"]})
    assert (named["response_type"], list(named["embeddings"])) == ("embeddings_by_type", ["float"])
    cut = await stack.post("/v2/embed", body | {"output_dimension": 2})
    assert cut["embeddings"] == {"float": [pytest.approx(embedding(ids, 2), abs=1e-6)]}
    plain = await stack.post(
        "/v2/embed", {"model": "embedder", "inputs": [{"content": [{"type": "text", "text": "hi"}]}]}
    )
    assert plain["embeddings"]["float"] == [pytest.approx(embedding(await stack.ids("hi")), abs=1e-6)]
    for truncate, kept in (("END", "h"), ("START", "i")):
        await stack.post("/v2/embed", {"model": "embedder", "texts": ["hi"], "truncate": truncate, "max_tokens": 1})
        assert list(stack.inputs("embedder")[0].token_ids) == await stack.ids(kept)
    await stack.refused("/v2/embed", {"model": "embedder", "texts": ["h" * 5000], "truncate": "NONE"}, "4096 tokens")
    await stack.refused("/v2/embed", body | {"embedding_types": ["binary"]}, "whole bytes")
    await stack.refused("/v2/embed", body | {"input_type": "none"}, "search_query")
    await stack.refused("/v2/embed", body | {"texts": None}, "texts, images or inputs")
    await stack.refused("/v2/embed", body | {"images": ["data:image/png;base64,x"], "texts": None}, "reads text only")


async def test_likely_labels(stack: Stack) -> None:
    """Scores are the softmax over two labels with log-probabilities -1 and -2, in their order."""
    body = {"model": "writer", "query": "Is it? ", "items": ["yes", "no"], "label_token_ids": [7, 9]}
    answer = await stack.post("/generative_scoring", body)
    expected = math.exp(-1) / (math.exp(-1) + math.exp(-2))
    assert [(each["index"], each["score"]) for each in answer["data"]] == [
        (0, pytest.approx(expected)), (1, pytest.approx(expected))
    ]  # fmt: skip
    assert (answer["object"], answer["data"][0]["object"]) == ("list", "score")
    for generation in stack.engines["writer"].record.started[-2:]:
        sampling = generation.sampling
        assert list(sampling.logprob_token_ids) == [7, 9]
        assert (sampling.max_tokens, sampling.processed_logprobs) == (1, True)
        assert not sampling.HasField("temperature")  # temperature 1
    query, yes, no = await stack.ids("Is it? "), await stack.ids("yes"), await stack.ids("no")
    texts = [list(each.prompt_token_ids) for each in stack.engines["writer"].record.started[-2:]]
    assert texts == [query + yes, query + no]
    plain = await stack.post("/generative_scoring", body | {"apply_softmax": False, "item_first": True})
    assert plain["data"][1]["score"] == pytest.approx(math.exp(-1))
    assert list(stack.engines["writer"].record.started[-1].prompt_token_ids) == no + query
    await stack.post("/generative_scoring", body | {"query": [1, 2], "items": [[3], "no"]})
    started = stack.engines["writer"].record.started[-2:]
    assert [list(each.prompt_token_ids) for each in started] == [[1, 2, 3], [1, 2, *no]]
    await stack.refused("/generative_scoring", body | {"label_token_ids": []}, "label_token_ids is empty")
    await stack.refused("/generative_scoring", body | {"label_token_ids": [10**6]}, "vocabulary")
    await stack.refused("/generative_scoring", body | {"items": [[10**6]]}, "vocabulary")


async def test_a_model_of_the_other_kind_is_refused_with_what_serves_it(stack: Stack) -> None:
    pooling = {
        "/v1/embeddings": {"input": "a"}, "/pooling": {"input": "a"}, "/classify": {"input": "a"},
        "/score": {"text_1": "a", "text_2": "b"}, "/rerank": {"query": "a", "documents": ["b"]},
        "/v2/embed": {"texts": ["a"]},
    }  # fmt: skip
    for path, body in pooling.items():
        error = await stack.refused(path, body | {"model": "writer"}, "'writer' is served with --runner generate")
        assert (error["type"], error["param"], error["code"]) == ("BadRequestError", "model", 400)
    messages = [{"role": "user", "content": "a"}]
    generating = {
        "/v1/completions": {"prompt": "a"}, "/v1/chat/completions": {"messages": messages},
        "/v1/responses": {"input": "a"}, "/v1/messages": {"messages": messages, "max_tokens": 1},
        "/generative_scoring": {"query": "a", "items": ["b"], "label_token_ids": [1]},
    }  # fmt: skip
    for path, body in generating.items():
        await stack.refused(path, body | {"model": "embedder"}, "'embedder' is served with --runner pooling")
    await stack.refused("/v1/embeddings", {"model": "none", "input": "a"}, "does not exist", status=404)
    # Without a model name, requests go to a model of the matching kind.
    assert (await stack.post("/pooling", {"input": "a"}))["model"] in set(KINDS) - {"writer"}
    assert (await stack.post("/v1/completions", {"prompt": [65], "max_tokens": 1}))["model"] == "writer"
    listed = {each["id"] for each in (await stack.gateway.client.get("/v1/models")).json()["data"]}
    assert listed == set(KINDS)


async def test_what_is_wrong_is_named(stack: Stack) -> None:
    bodies: list[tuple[dict[str, Any], str]] = [
        ({}, "input or messages"), ({"input": []}, "input has 0"), ({"input": ["a", [1]]}, "one kind"),
        ({"input": [1, "a"]}, "one kind"), ({"input": [[1], [2.5]]}, "input"), ({"input": ""}, "empty"),
        ({"input": [[]]}, "empty"), ({"input": [10**7]}, "vocabulary"), ({"input": ["a"] * 1025}, "1025"),
        ({"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"input": "a", "encoding_format": "hex"}, "hex"), ({"input": "a", "padding": "max_length"}, "padding"),
        ({"input": "a", "priority": 2**40}, "priority"), ({"input": "a", "request_id": "ä"}, "request_id"),
        ({"input": "a", "cache_salt": ""}, "cache_salt"), ({"input": "a", "prompt_name": "x"}, "prompts: none"),
        ({"input": "a", "mm_processor_kwargs": {"x": 1}}, "mm_processor_kwargs is refused: it is about images"),
        ({"input": "a", "mm_processor_kwargs": [1]}, "object"),
    ]  # fmt: skip
    for body, part in bodies:
        await stack.refused("/v1/embeddings", body | {"model": "embedder"}, part)


async def test_images_are_not_pooled(stack: Stack) -> None:
    conversation = [
        {"role": "user", "content": ["a", {"type": "image_url", "image_url": "data:image/png;base64,eA=="}]}
    ]
    for messages in (conversation, [conversation]):
        told = "messages[0].content[1] is an image, but this model reads text only"
        error = await stack.refused("/v1/embeddings", {"model": "embedder", "messages": messages}, told)
        assert error["param"] == "messages"
    settings = {"mm_processor_kwargs": {"max_pixels": 784}}
    for path, body in (
        ("/pooling", {"model": "embedder", "input": "a"}), ("/classify", {"model": "classifier", "input": "a"}),
        ("/score", {"model": "cross", "text_1": "a", "text_2": "b"}),
        ("/rerank", {"model": "cross", "query": "a", "documents": ["b"]}),
        ("/invocations", {"model": "embedder", "input": "a"}),
    ):  # fmt: skip
        assert (await stack.refused(path, body | settings, "text only"))["param"] == "mm_processor_kwargs"
        for neutral in (None, {}):
            await stack.post(path, body | {"mm_processor_kwargs": neutral})


async def test_answers_are_bounded(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    body = {"model": "embedder", "input": ["hello", "hi"], "task": "token_embed"}
    monkeypatch.setattr("gateway.endpoints.embeddings._MOST_NUMBERS", 27)
    await stack.refused("/pooling", body, "28 numbers", "base64")
    assert (await stack.post("/pooling", body | {"encoding_format": "base64"}))["data"]
    monkeypatch.setattr("gateway.services.pooling._MOST_REQUEST_BYTES", 111)
    await stack.refused("/pooling", body | {"encoding_format": "base64"}, "112 bytes as float32", "fewer inputs")
    room = stack.gateway.context.pipeline.pooling._bytes_room
    assert room._free == 2**30


async def test_large_requests_go_in_parts(stack: Stack) -> None:
    count = len(stack.engines["cross"].pooling.received)
    texts = [f"number {number}" for number in range(9)]
    answer = await stack.post("/rerank", {"model": "cross", "query": "q?", "documents": texts})  # two at a time
    assert len(stack.engines["cross"].pooling.received) == count + 5
    assert sorted(each["index"] for each in answer["results"]) == list(range(9))
    ids = {each.request_id for each in stack.engines["cross"].pooling.received[-5:]}
    assert len(ids) == 5


async def test_invocations_go_where_the_model_and_the_fields_say(stack: Stack) -> None:
    for body, key in (
        ({"model": "embedder", "input": "a"}, "embedding"), ({"model": "classifier", "input": "a"}, "probs"),
        ({"model": "cross", "text_1": "a", "text_2": "b"}, "score"), ({"model": "late", "input": "a"}, "data"),
    ):  # fmt: skip
        assert key in (await stack.post("/invocations", body))["data"][0]
    assert (await stack.post("/invocations", {"model": "cross", "query": "a", "documents": ["b"]}))["results"]


async def test_a_client_that_goes_away_ends_its_request(stack: Stack) -> None:
    engine = stack.engines["embedder"]
    engine.pooling.hold()
    count, cancelled = len(engine.pooling.received), engine.pooling.cancelled
    job = asyncio.ensure_future(stack.gateway.post("/v1/embeddings", {"model": "embedder", "input": "a"}))
    await eventually(lambda: len(engine.pooling.received) == count + 1, "it has not come")
    assert (await stack.gateway.client.get("/load")).json() == {"server_load": 1}
    job.cancel()
    with contextlib.suppress(asyncio.CancelledError, httpx.HTTPError):
        await job
    await eventually(lambda: engine.pooling.cancelled == cancelled + 1, "the engine goes on")
    engine.pooling.release()
    await eventually(lambda: stack.gateway.context.statistics.num_live == 0, "it is not forgotten")


async def test_metrics_and_request_ids(stack: Stack) -> None:
    headers = {"x-request-id": "mine", "x-tenant": "me"}
    answer = await stack.post("/v1/embeddings", {"model": "embedder", "input": ["a", "b"]}, **headers)
    assert answer["id"] == "embd-mine"
    many = await stack.post("/v1/embeddings", {"model": "embedder", "input": ["a"] * 300}, **headers)
    assert many["id"] == "embd-mine"  # it is encoded in a thread
    seen = stack.engines["embedder"].pooling.received[-3]
    assert seen.request_id == "mine"
    assert seen.tenant
    metrics = (await stack.gateway.client.get("/metrics")).text
    assert 'vllm:request_success_total{engine="0",finished_reason="stop",model_name="embedder"}' in metrics
    assert 'vllm:request_prompt_tokens_count{engine="0",model_name="embedder"}' in metrics
