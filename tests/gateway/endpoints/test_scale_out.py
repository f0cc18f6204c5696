"""Requests split into render, generate (token ids only) and derender give the same result as a single request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from quire.options.reasoning import ReasoningOptions
from quire.options.tools import ToolOptions
from tests.gateway.conftest import StartReplicas
from tests.support.fake_engine import FakeOptions
from tests.support.gateway_stack import Gateway, GatewayStack, running_gateway
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

GENERATE = "/inference/v1/generate"
MESSAGES = [{"role": "user", "content": "A"}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def split(tokenizer_folder: Path) -> AsyncIterator[GatewayStack]:
    async with running_gateway(tokenizer_folder, enable_scale_out=True) as stack:
        yield stack
        assert stack.context.pipeline.num_live == 0
        assert stack.context.statistics.num_live == 0


async def post(gateway: Gateway, path: str, body: Any) -> Any:
    response = await gateway.post(path, body)
    assert response.status_code == 200, response.text
    return response.json()


async def refusal(gateway: Gateway, path: str, body: Any) -> str:
    response = await gateway.post(path, body)
    assert response.status_code == 400, response.text
    return str(response.json()["error"]["message"])


async def stream_of(gateway: Gateway, body: dict[str, Any]) -> list[Any]:
    *chunks, done = await gateway.events(GENERATE, body)
    assert done == "[DONE]"
    return chunks


def told(answer: dict[str, Any]) -> dict[str, Any]:
    """The answer without the fields that differ between calls."""
    return {key: value for key, value in answer.items() if key not in ("id", "created")}


async def in_parts(gateway: Gateway, chat: dict[str, Any]) -> dict[str, Any]:
    """A chat completion made by three separate requests."""
    rendered = await post(gateway, "/v1/chat/completions/render", chat)
    generated = await post(gateway, GENERATE, rendered)
    body = {"generate_response": generated, "prompt_token_ids": rendered["token_ids"], "chat_request": chat}
    return dict(await post(gateway, "/v1/chat/completions/derender", body))


async def test_token_ids_in_and_out(split: GatewayStack) -> None:
    answer = await post(split, GENERATE, {"token_ids": [32], "sampling_params": {"max_tokens": 3}, "request_id": "r1"})
    assert told(answer) == {
        "request_id": "r1", "output_mode": "tokens", "model": "fake", "prompt_logprobs": None, "prompt_token_ids": None,
        "choices": [
            {
                "index": 0, "token_ids": [32, 39, 46], "logprobs": None, "finish_reason": "length",
                "stop_reason": None, "weight_versions": [{"version": "default", "start": 0, "end": 3}],
            }
        ],
        "usage": {"prompt_tokens": 1, "completion_tokens": 3, "total_tokens": 4},
    }  # fmt: skip
    assert not split.context.pipeline.texts.num_open


async def test_text_is_told_where_it_is_asked_for(split: GatewayStack) -> None:
    body = {"token_ids": [32], "sampling_params": {"max_tokens": 3, "n": 2}, "output_mode": "text"}
    answer = await post(split, GENERATE, body | {"return_token_ids": True})
    assert [choice["text"] for choice in answer["choices"]] == ["AHO", "`gn"]
    assert answer["prompt_token_ids"] == [32]
    first, *rest = await stream_of(split, body | {"return_token_ids": True, "stream_options": {"include_usage": True}})
    assert first["prompt_token_ids"] == [32] and not any("prompt_token_ids" in chunk for chunk in rest)
    assert rest[-1]["usage"]["completion_tokens"] == 6 and rest[-1]["choices"] == []
    choices = [choice for chunk in (first, *rest) for choice in chunk["choices"]]
    for index, text in enumerate(("AHO", "`gn")):
        assert "".join(choice["text"] for choice in choices if choice["index"] == index) == text
        ids = [token_id for choice in choices if choice["index"] == index for token_id in choice["token_ids"]]
        assert ids == answer["choices"][index]["token_ids"]


async def test_stop_strings_are_found_without_text_being_told(split: GatewayStack) -> None:
    answer = await post(split, GENERATE, {"token_ids": [32], "sampling_params": {"max_tokens": 9, "stop": ["O"]}})
    assert answer["choices"][0] == {
        "index": 0, "token_ids": [32, 39, 46], "logprobs": None, "finish_reason": "stop", "stop_reason": "O",
        "weight_versions": [{"version": "default", "start": 0, "end": 3}],
    }  # fmt: skip


async def test_every_field_goes_to_the_engine(split: GatewayStack) -> None:
    sampling = {
        "temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "seed": 7, "min_tokens": 1, "max_tokens": 2,
        "repetition_penalty": 1.1, "presence_penalty": 0.2, "frequency_penalty": 0.3, "stop_token_ids": [9],
        "ignore_eos": True, "logit_bias": {"5": 1.5}, "allowed_token_ids": [1, 2], "bad_words": ["H"],
        "logprobs": 2, "extra_args": {"x": 1}, "repetition_detection": {"max_pattern_size": 3, "min_count": 2},
    }  # fmt: skip
    await split.post(GENERATE, {"token_ids": [32], "sampling_params": sampling, "priority": 3, "cache_salt": "s"})
    generation = split.engine.record.started[-1]
    wire = generation.sampling
    assert (wire.seed, wire.top_k, wire.max_tokens, wire.min_tokens) == (7, 5, 2, 1)
    assert (list(wire.stop_token_ids), dict(wire.logit_bias)) == ([9], {5: 1.5})
    assert (list(wire.allowed_token_ids), wire.ignore_eos, wire.logprobs) == ([1, 2], True, 2)
    assert (wire.vllm_xargs, wire.repetition_detection.min_count) == (b'{"x":1}', 2)
    assert [list(run.token_ids) for run in wire.bad_words] == [[39]]
    assert (generation.priority, generation.cache_salt) == (3, "s")


async def test_without_max_tokens_an_output_is_as_long_as_fits(split: GatewayStack) -> None:
    body = {"token_ids": [32], "sampling_params": {}, "stream": True}
    async with split.client.stream("POST", GENERATE, json=body) as response:
        await anext(response.aiter_lines())
    assert not split.engine.record.started[-1].sampling.HasField("max_tokens")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"token_ids": []}, "at least one token"),
        ({"token_ids": [10**6]}, "out of vocabulary"),
        ({"token_ids": [1], "kv_transfer_params": {"do_remote_decode": True}}, "kv_transfer_params is refused"),
        ({"token_ids": [1], "features": {}}, "features is refused"),
        ({"token_ids": [1], "output_mode": "text", "sampling_params": {"detokenize": False}}, "detokenize"),
        ({"token_ids": [1], "sampling_params": {"temperature": 9}}, "temperature"),
        ({"token_ids": [1], "stream_options": {}}, "stream_options needs stream"),
    ],
)
async def test_what_is_wrong_is_named(split: GatewayStack, body: dict[str, Any], words: str) -> None:
    assert words in await refusal(split, GENERATE, {"sampling_params": {}} | body)


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": 5},
        {"max_tokens": 9, "stop": ["O"]},
        {"max_tokens": 9, "stop": ["O"], "include_stop_str_in_output": True, "n": 2, "seed": 1},
        {"max_tokens": 4, "return_token_ids": True, "temperature": 0.2, "logit_bias": {"3": -1}},
        {"max_completion_tokens": 4, "max_tokens": 9, "tools": TOOLS, "tool_choice": "none"},
    ],
)
async def test_a_chat_in_parts_is_the_same(split: GatewayStack, fields: dict[str, Any]) -> None:
    chat = {"messages": MESSAGES} | fields
    whole = await post(split, "/v1/chat/completions", chat)
    assert told(await in_parts(split, chat)) == told(whole)


async def test_completions_in_parts_are_the_same(split: GatewayStack) -> None:
    body = {"prompt": ["A", "B"], "n": 2, "stop": ["n"], "max_tokens": 4}
    whole = await post(split, "/v1/completions", body)
    rendered = await post(split, "/v1/completions/render", body)
    assert [each["token_ids"] for each in rendered] == [[32], [33]]
    generated = [await post(split, GENERATE, each) for each in rendered]
    told_again = await post(
        split, "/v1/completions/derender", {"generate_responses": generated, "completion_request": body}
    )
    assert told_again["choices"] == whole["choices"]
    assert told_again["usage"]["total_tokens"] == whole["usage"]["total_tokens"]


async def test_other_apis_are_rendered_as_the_chat_that_they_are(split: GatewayStack) -> None:
    chat = await post(split, "/v1/chat/completions/render", {"messages": MESSAGES, "max_tokens": 5})
    anthropic = await post(split, "/v1/messages/render", {"model": "fake", "messages": MESSAGES, "max_tokens": 5})
    response = await post(split, "/v1/responses/render", {"input": "A", "max_output_tokens": 5})
    assert chat["token_ids"] == anthropic["token_ids"] == response["token_ids"]
    assert chat["sampling_params"] == response["sampling_params"]
    assert chat["sampling_params"]["max_tokens"] == 5


async def test_token_offsets_lead_back_to_the_text(split: GatewayStack) -> None:
    wanted = {"return_token_offsets": True, "max_tokens": 2}
    chat = await post(split, "/v1/chat/completions/render", {"messages": MESSAGES} | wanted)
    text = (await post(split, "/detokenize", {"tokens": chat["token_ids"]}))["prompt"]
    assert "".join(text[start:end] for start, end in chat["token_offsets"]) == text
    body = {"prompt": ["A", "BC"], "truncate_prompt_tokens": 1}
    assert [each["token_offsets"] for each in await post(split, "/v1/completions/render", body | wanted)] == [
        [[0, 1]], [[1, 2]],
    ]  # fmt: skip
    assert (await post(split, GENERATE, chat))["choices"]
    for asked in (body, {"prompt": [32]} | wanted, {"prompt": "A", "suffix": "B"} | wanted):
        answer = await split.post("/v1/completions/render", asked)
        assert "token_offsets" not in answer.text
    for path, asked in (("/v1/completions", body), ("/v1/chat/completions", {"messages": MESSAGES})):
        assert "/v1/completions/render" in await refusal(split, path, asked | wanted)


@pytest.mark.parametrize(
    ("asked", "form"),
    [
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "integer"}}}},
         {"json": '{"type":"integer"}'}),
        ({"response_format": {"type": "json_object"}}, {"json": '{"type": "object"}'}),
        ({"structured_outputs": {"regex": "a+", "disable_fallback": True}}, {"regex": "a+", "disable_fallback": True}),
        ({"guided_choice": ["a", "b"]}, {"choice": ["a", "b"]}),
        ({"structured_outputs": {"grammar": 'start: "a"'}}, {"grammar": 'start: "a"'}),
    ],
)  # fmt: skip
async def test_constraints_are_rendered_in_one_form(
    split: GatewayStack, asked: dict[str, Any], form: dict[str, Any]
) -> None:
    rendered = await post(split, "/v1/chat/completions/render", {"messages": MESSAGES, "max_tokens": 2} | asked)
    assert rendered["sampling_params"]["structured_outputs"] == form
    assert not {"response_format", "guided_choice"} & rendered["sampling_params"].keys()
    await split.post(GENERATE, rendered)
    direct = split.engine.record.started[-1].constraint.key
    await split.post("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 2} | asked)
    assert direct == split.engine.record.started[-1].constraint.key


async def pieces_of(gateway: Gateway, chat: dict[str, Any]) -> list[dict[str, Any]]:
    """The chunks of a streamed chat, made by many separate requests."""
    rendered = await post(gateway, "/v1/chat/completions/render", chat)
    state, found = None, []
    for chunk in await stream_of(gateway, rendered | {"stream_options": {"include_usage": True}}):
        body = {
            "stream": True, "generate_chunk": chunk, "stream_state": state, "chat_request": chat,
            "prompt_token_ids": rendered["token_ids"],
        }  # fmt: skip
        answer = await post(gateway, "/v1/chat/completions/derender", body)
        state = answer["stream_state"]
        found.append(answer["chunk"])
    return found


async def test_a_stream_in_parts_is_the_same(split: GatewayStack) -> None:
    chat = {"messages": MESSAGES, "max_tokens": 12, "stop": ["zz"]}
    whole = await post(split, "/v1/chat/completions", chat)
    *chunks, usage = await pieces_of(split, chat)
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert not any("role" in chunk["choices"][0]["delta"] for chunk in chunks[1:])
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert text == whole["choices"][0]["message"]["content"]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks][-1] == "length"
    assert usage["choices"] == [] and usage["usage"] == whole["usage"]


async def test_characters_of_several_tokens_survive_the_cuts_of_a_stream(split: GatewayStack) -> None:
    spelled = (await post(split, "/tokenize", {"prompt": "grüße €"}))["tokens"]
    text, state = "", None
    for number, token_id in enumerate(spelled, 1):
        end = {"finish_reason": "length"} if number == len(spelled) else {}
        chunk = {"request_id": "r", "choices": [{"index": 2, "token_ids": [token_id], **end}]}
        body = {"stream": True, "generate_chunk": chunk, "stream_state": state}
        answer = await post(split, "/v1/completions/derender", body)
        state = answer["stream_state"]
        assert answer["chunk"]["choices"][0]["index"] == 2
        text += answer["chunk"]["choices"][0]["text"]
    assert text == "grüße €"


async def test_no_chunk_follows_a_stop_string(split: GatewayStack) -> None:
    spelled = (await post(split, "/tokenize", {"prompt": "one stop two"}))["tokens"]
    chunk = {"choices": [{"index": 0, "token_ids": spelled[-1:]}]}
    body = {
        "stream": True, "generate_chunk": chunk, "stream_state": {"token_ids": spelled[:-1]},
        "completion_request": {"prompt": "", "stop": "stop"},
    }  # fmt: skip
    assert "stop string" in await refusal(split, "/v1/completions/derender", body)
    body["completion_request"] = {"prompt": ""}
    await post(split, "/v1/completions/derender", body)


async def test_calls_of_tools_are_found_in_parts_too(start_replicas: StartReplicas) -> None:
    options = ToolOptions(tool_call_parser="hermes", enable_auto_tool_choice=True)
    call = '<tool_call>\n{"name": "f", "arguments": {"a": [1, 2]}}\n</tool_call>'
    chat = {"messages": MESSAGES, "tools": TOOLS, "max_tokens": 200, "stop": ["§"]}
    async with start_replicas(1, tools=options, enable_scale_out=True) as replicas:
        gateway = replicas.gateway
        spelled = (await post(gateway, "/tokenize", {"prompt": f"So: {call}§"}))["tokens"]
        replicas.routers[0].state.outputs = [spelled]
        whole = (await in_parts(gateway, chat))["choices"][0]
        assert whole["finish_reason"] == "tool_calls"
        assert whole["message"]["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a": [1, 2]}'}
        for at_once in (1, 7, 1000):
            replicas.routers[0].state.piece = lambda count=at_once: count
            choices = [choice for chunk in await pieces_of(gateway, chat) for choice in chunk["choices"]]
            pieces = [piece for choice in choices for piece in choice["delta"].get("tool_calls", ())]
            assert [piece["function"]["name"] for piece in pieces if "id" in piece] == ["f"]
            assert "".join(piece["function"]["arguments"] for piece in pieces) == '{"a": [1, 2]}'
            assert choices[-1]["finish_reason"] == "tool_calls"


async def test_thinking_is_found_in_parts_too(start_replicas: StartReplicas) -> None:
    options = ReasoningOptions(reasoning_parser="deepseek_r1")
    chat = {"messages": MESSAGES, "max_tokens": 200, "stop": ["§"]}
    async with start_replicas(1, reasoning=options, enable_scale_out=True) as replicas:
        gateway = replicas.gateway
        spelled = (await post(gateway, "/tokenize", {"prompt": "well</think>Yes§"}))["tokens"]
        replicas.routers[0].state.outputs = [spelled]
        whole = await post(gateway, "/v1/chat/completions", chat)
        assert whole["choices"][0]["message"]["reasoning"] == "well"
        assert told(await in_parts(gateway, chat)) == told(whole)
        generated = {"choices": [{"index": 0, "token_ids": spelled}]}
        assert "prompt_token_ids is required" in await refusal(
            gateway, "/v1/chat/completions/derender", {"generate_response": generated}
        )


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "generate_response is required"),
        ({"stream": True}, "generate_chunk is required"),
        ({"generate_response": {"choices": []}}, "indexes 0, 1"),
        ({"generate_response": {"choices": [{"index": 1, "token_ids": [1]}]}}, "indexes 0, 1"),
        ({"generate_response": {"choices": [{"index": 0, "token_ids": [-1]}]}}, "out of vocabulary"),
        ({"generate_response": {"choices": [{"index": 0, "token_ids": [1], "finish_reason": "bored"}]}}, "'bored'"),
        ({"generate_response": {"choices": [{"index": 0}], "output_mode": "text"}}, "output_mode"),
        ({"generate_response": {"choices": [{"index": 0}], "request_id": "ü"}}, "request_id"),
        ({"generate_response": {"choices": [{"index": 0, "token_ids": [1]}]},
          "chat_request": {"messages": [], "echo": True}}, "messages must have 1"),
        ({"generate_response": {"choices": [{"index": 0, "token_ids": [1]}]},
          "chat_request": {"messages": [{"content": "A"}], "add_generation_prompt": False}}, "messages[0].role"),
        ({"stream": True, "generate_chunk": {"choices": [{"index": 0}, {"index": 1}]}}, "one choice"),
        ({"stream": True, "generate_chunk": {"choices": [{"index": 0}]}, "stream_state": {"token_ids": [-4]}}, "vocab"),
        ({"generate_response": {"choices": [{"index": 0, "token_ids": [1], "logprobs": {"content": [
            {"token_id": 1, "logprob": 0.0, "rank": -1}]}}]}}, "rank"),
    ],
)  # fmt: skip
async def test_what_cannot_be_derendered_is_named(split: GatewayStack, body: dict[str, Any], words: str) -> None:
    assert words in await refusal(split, "/v1/chat/completions/derender", body)


async def test_responses_have_to_be_alike(split: GatewayStack) -> None:
    one = {"choices": [{"index": 0, "token_ids": [1]}]}
    two = {"choices": [{"index": 0, "token_ids": [1]}, {"index": 1, "token_ids": [1]}]}
    path = "/v1/completions/derender"
    assert "same number of choices" in await refusal(split, path, {"generate_responses": [one, two]})
    assert "an entry for each" in await refusal(split, path, {"generate_responses": [one], "prompt_tokens": [1, 2]})
    assert "generate_responses" in await refusal(split, path, {})
    answer = await post(split, path, {"generate_responses": [one], "prompt_tokens": [40]})
    assert answer["usage"] == {"prompt_tokens": 40, "completion_tokens": 1, "total_tokens": 41}


async def test_log_probabilities_get_their_texts(split: GatewayStack) -> None:
    entry = {"token_id": 32, "logprob": -0.5, "rank": 1, "top_logprobs": [{"token_id": 33, "logprob": -1.0}]}
    generated = {
        "choices": [{"index": 0, "token_ids": [32], "finish_reason": "length", "logprobs": {"content": [entry]}}]
    }
    chat = await post(split, "/v1/chat/completions/derender", {"generate_response": generated})
    assert chat["choices"][0]["logprobs"]["content"] == [
        {"token": "A", "logprob": -0.5, "bytes": [65], "top_logprobs": [{"token": "B", "logprob": -1.0, "bytes": [66]}]}
    ]
    completion = await post(split, "/v1/completions/derender", {"generate_responses": [generated]})
    assert completion["choices"][0]["logprobs"]["tokens"] == ["A"]


async def test_requests_are_aborted_by_their_ids(tokenizer_folder: Path) -> None:
    """Only requests with the same API key are aborted, and they return what they have so far."""
    keys = {"one": {"authorization": "Bearer key-one"}, "two": {"authorization": "Bearer key-two"}}
    options = {"enable_scale_out": True, "api_key": ("key-one", "key-two")}
    async with running_gateway(tokenizer_folder, FakeOptions(step_seconds=0.01), **options) as stack:
        body = {"token_ids": [32], "sampling_params": {"ignore_eos": True}, "request_id": "r7"}
        running = asyncio.create_task(stack.client.post(GENERATE, json=body, headers=keys["one"]))
        await eventually(lambda: stack.context.statistics.num_live == 1, "it does not run")
        for key in ("two", "one"):
            abort = {"request_ids": ["r7", "none"]}
            ended = await stack.client.post("/inference/v1/abort_requests", json=abort, headers=keys[key])
            assert ended.status_code == 200
            assert key == "one" or stack.context.statistics.num_live == 1
        answer = (await running).json()
        assert answer["choices"][0]["finish_reason"] == "abort"
        await eventually(lambda: not stack.engine.live, "the engine goes on")
        too_many = {"request_ids": ["r"] * 1025}
        refused = await stack.client.post("/inference/v1/abort_requests", json=too_many, headers=keys["one"])
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "request_ids")


async def test_the_tokenizer_service_forgets_aborted_choices(tokenizer_folder: Path) -> None:
    async with running_gateway(tokenizer_folder, FakeOptions(step_seconds=0.01), enable_scale_out=True) as stack:
        body = {"prompt": "A", "n": 3, "max_tokens": 2000}
        running = asyncio.create_task(stack.client.post("/v1/completions", json=body, headers={"x-request-id": "r8"}))
        await eventually(lambda: stack.tokenizer.num_streams == 3, "no text is made")
        await stack.post("/inference/v1/abort_requests", {"request_ids": ["r8"]})
        assert [choice["finish_reason"] for choice in (await running).json()["choices"]] == ["abort"] * 3
        await eventually(lambda: stack.tokenizer.num_streams == 0, "the tokenizer service keeps ended choices")


async def test_they_are_off_unless_asked_for(gateway: GatewayStack) -> None:
    response = await gateway.post(GENERATE, {"token_ids": [1], "sampling_params": {}})
    assert response.status_code == 403
    assert "--enable-scale-out" in response.json()["error"]["message"]
    response = await gateway.post("/v1/messages/render", {})
    assert (response.status_code, response.json()["error"]["type"]) == (403, "permission_error")


async def test_the_tokenizer_tells_of_itself_where_it_may(tokenizer_folder: Path, gateway: GatewayStack) -> None:
    assert (await gateway.client.get("/tokenizer_info")).status_code == 404
    async with running_gateway(tokenizer_folder, enable_tokenizer_info_endpoint=True) as stack:
        infos = [(await stack.client.get(path)).json() for path in ("/tokenizer_info", "/get_tokenizer_info")]
        assert infos[0] == infos[1]
        assert "<|im_start|>" in infos[0]["chat_template"] and infos[0]["tokenizer_class"]


async def test_where_workers_tell_of_their_caches(gateway: GatewayStack) -> None:
    answer = (await gateway.client.get("/kv_event_sources")).json()
    assert answer == {
        "0": {
            "endpoint": gateway.engine.address, "publisher": "grpc", "enable_kv_cache_events": True,
            "topic": "quire.v1.EngineService/SubscribeKvEvents",
        }
    }  # fmt: skip


async def test_what_the_server_was_started_with(
    tokenizer_folder: Path, gateway: GatewayStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await gateway.client.get("/server_info")).status_code == 404
    monkeypatch.setenv("QUIRE_API_KEY", "in-the-environment")
    async with running_gateway(tokenizer_folder, server_dev_mode=True, api_key=("key-one",)) as stack:
        stack.client.headers["authorization"] = "Bearer key-one"
        text = await stack.client.get("/server_info")
        answer = (await stack.client.get("/server_info?config_format=json")).json()
        assert answer["vllm_config"]["api_key"] == "(hidden)" and answer["vllm_config"]["port"] == 8000
        assert "port=8000" in text.json()["vllm_config"]
        assert answer["system_env"]["Python"] and answer["vllm_env"]["QUIRE_API_KEY"] == "(hidden)"
        for secret in ("key-one", "in-the-environment"):
            assert secret not in text.text + json.dumps(answer)
        assert (await stack.client.get("/server_info?config_format=xml")).status_code == 400
