"""Bad input gets the right status in OpenAI's shape, naming the field and its value; and the next request is served."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.gateway_stack import GatewayStack

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHAT = {"model": "fake", "messages": [{"role": "user", "content": "A"}], "max_tokens": 2}
COMPLETION = {"model": "fake", "prompt": "A", "max_tokens": 2}

# (changed fields, parameter that the error names, part of its message)
BOTH: list[tuple[dict[str, Any], str, str]] = [
    ({"temperature": 3}, "temperature", "3"),
    ({"temperature": "hot"}, "temperature", "float"),
    ({"top_p": 0}, "top_p", "above 0"),
    ({"top_k": -2}, "top_k", "-2"),
    ({"min_p": 1.5}, "min_p", "1.5"),
    ({"n": 0}, "n", "at least 1"),
    ({"n": 129}, "n", "128"),
    ({"n": 2, "temperature": 0}, "n", "temperature 0"),
    ({"n": 2, "temperature": 1e-38}, "n", "temperature 1e-38"),
    ({"presence_penalty": -3}, "presence_penalty", "-3"),
    ({"frequency_penalty": 2.1}, "frequency_penalty", "2.1"),
    ({"repetition_penalty": 0}, "repetition_penalty", "above 0"),
    ({"min_tokens": -1}, "min_tokens", "-1"),
    ({"seed": 2**63}, "seed", f"seed is {2**63}; it must be at least {-(2**63)} and at most {2**63 - 1}."),
    ({"stop": [""]}, "stop", "1 to 256"),
    ({"stop": ["x"] * 65}, "stop", "65 strings; at most 64"),
    ({"stop": [1]}, "stop", "str"),
    ({"stop_token_ids": [50000]}, "stop_token_ids", "50000"),
    ({"logit_bias": {"a": 1}}, "logit_bias", "'a'"),
    ({"logit_bias": {"50000": 1}}, "logit_bias", "50000"),
    ({"logit_bias": {"60000": 1, "5": 1, "a": 1, "-1": 1}}, "logit_bias", "'60000', 'a', '-1'"),
    ({"logit_bias": {"60000": 1}}, "logit_bias", "vocabulary size is 50000"),
    ({"logit_bias": {"1": 101}}, "logit_bias", "101"),
    ({"bad_words": [""]}, "bad_words", "1 to 256"),
    ({"bad_words": ["a"] * 129}, "bad_words", "129"),
    ({"bad_words": "a"}, "bad_words", "array"),
    ({"allowed_token_ids": []}, "allowed_token_ids", "is empty"),
    ({"allowed_token_ids": [1, 50000]}, "allowed_token_ids", "50000"),
    ({"allowed_token_ids": [1] * 50001}, "allowed_token_ids", "50001"),
    (
        {"repetition_detection": {"max_pattern_size": 1025, "min_count": 2}},
        "repetition_detection.max_pattern_size",
        "1024",
    ),
    (
        {"repetition_detection": {"max_pattern_size": 4, "min_pattern_size": 5, "min_count": 2}},
        "repetition_detection.min_pattern_size",
        "at most 4",
    ),
    ({"repetition_detection": {"max_pattern_size": 4}}, "repetition_detection.min_count", "at least 2"),
    ({"repetition_detection": {"max_pattern_size": "4"}}, "repetition_detection.max_pattern_size", "int"),
    ({"repetition_detection": True}, "repetition_detection", "object"),
    ({"logprob_token_ids": [1]}, "logprob_token_ids", "needs logprobs"),
    ({"logprob_token_ids": [1, 50000]}, "logprob_token_ids", "50000"),
    ({"logprob_token_ids": [1] * 1025}, "logprob_token_ids", "1025"),
    ({"thinking_token_budget": -1}, "thinking_token_budget", "-1"),
    ({"thinking_token_budget": 5}, "thinking_token_budget", "--reasoning-parser"),
    ({"stream_interval": 0}, "stream_interval", "at least 1"),
    ({"response_format": {"type": "yaml"}}, "response_format.type", "'yaml'"),
    ({"vllm_xargs": {"a": {"b": 1}}}, "vllm_xargs", "vllm_xargs"),
    ({"vllm_xargs": {"a": "b" * 20000}}, "vllm_xargs", "16384"),
    ({"logits_processors": ["a.B"] * 17}, "logits_processors", "17"),
    ({"logits_processors": ["a" * 257]}, "logits_processors", "257"),
    ({"logits_processors": [{"qualname": "a.B", "args": ["x" * 20000]}]}, "logits_processors", "16384"),
    ({"prompt_logprobs": -1}, "prompt_logprobs", "between 0 and 20"),
    ({"prompt_logprobs": 21}, "prompt_logprobs", "20"),
    ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs", "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "stream: true"),
    ({"cache_salt": ""}, "cache_salt", "1 to 128"),
    ({"cache_salt": "a" * 129}, "cache_salt", "1 to 128"),
    *[({"cache_salt": f"a{mark}b"}, "cache_salt", "none of @ /") for mark in "@/\\\0"],
    ({"request_id": "no spaces"}, "request_id", "A-Z"),
    ({"priority": 2**40}, "priority", "priority"),
    ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "-1 or positive"),
    ({"max_tokens": 5000}, "max_tokens", "4096"),
]
ONLY_CHAT: list[tuple[dict[str, Any], str, str]] = [
    ({"messages": []}, "messages", "1 to 4096"),
    ({"messages": [{"content": "A"}]}, "messages", "messages[0].role"),
    ({"messages": [{"role": "user", "content": 1}]}, "messages", "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "messages", "image_url"),
    ({"messages": "hello"}, "messages", "array"),
    ({"max_tokens": 0}, "max_tokens", "at least 1"),
    ({"max_completion_tokens": -5}, "max_completion_tokens", "-5"),
    ({"top_logprobs": 3}, "top_logprobs", "logprobs: true"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "20"),
    ({"continue_final_message": True}, "continue_final_message", "add_generation_prompt"),
    ({"suffix": "x"}, "suffix", "/v1/completions"),
    ({"tools": []}, "tools", "empty"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tool_choice", "--enable-auto-tool-choice"),
    ({"tool_choice": "auto"}, "tool_choice", "needs tools"),
    ({"functions": [{"name": "f"}]}, "functions", "tools replaces it"),
    ({"function_call": "auto"}, "function_call", "tool_choice replaces it"),
    ({"chat_template": "x"}, "chat_template", "--trust-request-chat-template"),
]
ONLY_COMPLETIONS: list[tuple[dict[str, Any], str, str]] = [
    ({"prompt": []}, "prompt", "1 to 1024"),
    ({"prompt": ""}, "prompt", "empty"),
    ({"prompt": [[]]}, "prompt", "empty"),
    ({"prompt": ["A", [1]]}, "prompt", "one kind"),
    ({"prompt": [50000]}, "prompt", "50000"),
    ({"prompt": [-1]}, "prompt", "-1"),
    ({"prompt": [1, 60000, 2, 70000, 60000]}, "prompt", "out of vocabulary: 60000, 70000. "),
    ({"prompt": [1] * 4096}, "prompt", "4096"),
    ({"max_tokens": 0}, "max_tokens", "echo"),
    ({"logprobs": 21}, "logprobs", "20"),
    ({"best_of": 3}, "best_of", "use_beam_search"),
    ({"use_beam_search": True, "best_of": -5}, "best_of", "1"),
    ({"use_beam_search": True, "n": 3, "best_of": 2}, "best_of", "3"),
    ({"use_beam_search": True, "best_of": 2, "n": 1, "stop": "x"}, "stop", "use_beam_search"),
    ({"use_beam_search": True, "logprobs": 1, "echo": True}, "echo", "use_beam_search"),
]


async def test_a_field_that_is_missing_is_named(gateway: GatewayStack) -> None:
    response = await gateway.post("/v1/chat/completions", {"model": "fake"})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "messages")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize(("fields", "parameter", "part"), BOTH)
async def test_fields_of_both(
    gateway: GatewayStack, path: str, fields: dict[str, Any], parameter: str, part: str
) -> None:
    await check(gateway, path, (CHAT if "chat" in path else COMPLETION) | fields, parameter, part)


@pytest.mark.parametrize(("fields", "parameter", "part"), ONLY_CHAT)
async def test_fields_of_chat(gateway: GatewayStack, fields: dict[str, Any], parameter: str, part: str) -> None:
    await check(gateway, "/v1/chat/completions", CHAT | fields, parameter, part)


@pytest.mark.parametrize(("fields", "parameter", "part"), ONLY_COMPLETIONS)
async def test_fields_of_completions(gateway: GatewayStack, fields: dict[str, Any], parameter: str, part: str) -> None:
    await check(gateway, "/v1/completions", COMPLETION | fields, parameter, part)


async def check(gateway: GatewayStack, path: str, body: dict[str, Any], parameter: str, part: str) -> None:
    response = await gateway.post(path, body)
    error = response.json()["error"]
    assert response.status_code == 400, error
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "BadRequestError"
    assert (error["param"] or "").split("[")[0] == parameter, error
    assert part in error["message"]
    assert not gateway.engine.live


async def test_a_context_that_is_too_long_has_the_code_of_its_status(gateway: GatewayStack) -> None:
    response = await gateway.post("/v1/completions", COMPLETION | {"prompt": [1] * 4096})
    assert (response.status_code, response.json()["error"]["code"]) == (400, 400)
    long = [{"role": "user", "content": "A" * 5000}]
    error = (await gateway.post("/v1/chat/completions", CHAT | {"messages": long})).json()["error"]
    assert (error["code"], error["param"]) == (400, "messages")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize(("header", "value"), [("x-data-parallel-rank", "0"), ("endpoint-load-metrics-format", "BIN")])
async def test_headers_that_ask_for_what_there_is_not(
    gateway: GatewayStack, path: str, header: str, value: str
) -> None:
    response = await gateway.post(path, CHAT if "chat" in path else COMPLETION, **{header: value})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, header)
    assert header in error["message"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/nothing", 404), ("POST", "/", 405), ("GET", "/v1/completions", 405), ("DELETE", "/v1/models", 405),
        ("GET", "/v1/models/", 404), ("POST", "/tokenize/", 404), ("PUT", "/v1/models/fake", 405),
        ("GET", "/docs/../gateway", 404), ("GET", "/docs/nothing.js", 404),
    ],
)  # fmt: skip
async def test_routes_that_are_not_there(gateway: GatewayStack, method: str, path: str, status: int) -> None:
    response = await gateway.client.request(method, path)
    assert response.status_code == status
    if not path.startswith("/docs"):
        assert response.json()["error"]["code"] == status


@pytest.mark.parametrize(
    ("content", "headers", "status", "part"),
    [
        (b"{", {}, 400, "not valid JSON"),
        (b"", {}, 400, "not valid JSON"),
        (b"[1]", {}, 400, "object"),
        (b'{"prompt": "\xff"}', {}, 400, "not valid JSON"),
        (b'{"prompt": "\\ud800"}', {}, 400, r"unpaired surrogate \ud800"),
        (b'{"prompt": "\\uD83D, \\uDE00"}', {}, 400, r"unpaired surrogate \uD83D"),
        (b'{"prompt": "\\udc00"}', {}, 400, r"unpaired surrogate \udc00"),
        (b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", {}, 400, ""),
        (b'{"temperature": NaN, "prompt": "A"}', {}, 400, "not valid JSON"),
        (b'{"temperature": 1e999, "prompt": "A"}', {}, 400, "temperature"),
        (json.dumps(COMPLETION).encode(), {"content-type": "text/plain"}, 400, "application/json"),
        (json.dumps(COMPLETION).encode(), {"content-encoding": "gzip"}, 415, "Compressed"),
        (b" " * (9 * 2**20), {}, 413, "--max-body-bytes"),
    ],
)
async def test_bodies(gateway: GatewayStack, content: bytes, headers: dict[str, str], status: int, part: str) -> None:
    response = await gateway.client.post(
        "/v1/completions", content=content, headers={"content-type": "application/json"} | headers
    )
    assert response.status_code == status, response.text
    assert part in response.json()["error"]["message"]
    assert (await gateway.complete())["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"])
async def test_no_such_model(gateway: GatewayStack, path: str) -> None:
    body = {"messages": CHAT["messages"]} if "chat" in path else {"tokens": [1]} if "detok" in path else {"prompt": "A"}
    response = await gateway.post(path, body | {"model": "other"})
    assert response.status_code == 404
    error = response.json()["error"]
    assert (error["param"], error["type"]) == ("model", "NotFoundError")
    assert "'other'" in error["message"]
    assert "fake" in error["message"]


@pytest.mark.parametrize(
    ("body", "part"),
    [
        ({"prompt": "A", "messages": CHAT["messages"]}, "either"), ({}, "either"), ({"messages": []}, "1 to 4096"),
    ],
)  # fmt: skip
async def test_tokenize(gateway: GatewayStack, body: dict[str, Any], part: str) -> None:
    response = await gateway.post("/tokenize", body)
    assert response.status_code == 400
    assert part in response.json()["error"]["message"]


async def test_detokenize_ids_outside_of_the_vocabulary(gateway: GatewayStack) -> None:
    response = await gateway.post("/detokenize", {"tokens": [1, 50000]})
    assert response.status_code == 400
    assert "50000" in response.json()["error"]["message"]
