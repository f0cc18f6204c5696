"""JSON bodies that are almost right, on all routes that generate: none is an error of the server's."""

from __future__ import annotations

import asyncio
import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from quire.options.model import ModelOptions
from quire.options.router import RouterOptions
from quire.options.server import GrpcServerOptions
from quire.options.tools import ToolOptions
from router.app import Router
from tests.support.engine_server import running_engine
from tests.support.fake_executor import FakeExecutor
from tests.support.fuzzing import NUM_CASES, chances
from tests.support.gateway_stack import SECURITY, gateway_before, running_tokenizer, save_tokenizer
from tests.support.hostile_calls import tracebacks
from tests.support.mutations import broken_bytes, broken_json

pytestmark = pytest.mark.slow

PARAMETERS = {
    "type": "object", "properties": {"city": {"type": "string", "maxLength": 9}, "unit": {"enum": ["c", "f"]}},
    "required": ["city"], "additionalProperties": False,
}  # fmt: skip
FUNCTION = {"name": "f", "description": "d", "strict": True, "parameters": PARAMETERS}
TOOL = {"type": "function", "function": FUNCTION}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"city": "Oslo"}'}}
TEXT = {"type": "text", "text": "Hi"}
CHAT: dict[str, Any] = {
    "messages": [
        {"role": "system", "content": "Be brief."}, {"role": "user", "name": "n", "content": [TEXT, TEXT]},
        {"role": "assistant", "content": None, "reasoning_content": "Hm", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c", "content": "cold"},
    ],
    "max_tokens": 3,
}  # fmt: skip
SAMPLING = {
    "temperature": 0.5, "top_p": 0.9, "top_k": 4, "min_p": 0.1, "n": 2, "seed": 3, "stop": ["x", "yz"],
    "stop_token_ids": [5], "logit_bias": {"5": 3}, "presence_penalty": 0.1, "repetition_penalty": 1.1,
    "bad_words": ["no"], "allowed_token_ids": [65, 66], "min_tokens": 1, "ignore_eos": True, "cache_salt": "s",
    "truncate_prompt_tokens": 10, "repetition_detection": {"max_pattern_size": 3, "min_count": 2},
}  # fmt: skip
RESPONSE = {
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "x", "annotations": []}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"city": "Oslo"}'},
        {"type": "function_call_output", "call_id": "c", "output": "cold"},
        {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "s"}]},
    ],
    "max_output_tokens": 16, "store": False, "tools": [{"type": "function", **FUNCTION}],
    "text": {"format": {"type": "json_schema", "name": "x", "schema": PARAMETERS}}, "reasoning": {"effort": "low"},
}  # fmt: skip
ANTHROPIC = {
    "messages": [
        {"role": "user", "content": [TEXT]},
        {"role": "assistant", "content": [TEXT, {"type": "tool_use", "id": "t", "name": "f", "input": {"city": "a"}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [TEXT]}]},
    ],
    "max_tokens": 3, "system": [TEXT], "tools": [{"name": "f", "description": "d", "input_schema": PARAMETERS}],
    "stop_sequences": ["a"], "metadata": {"user_id": "u"}, "thinking": {"type": "disabled"},
}  # fmt: skip
COHERE = {
    "messages": [
        {"role": "user", "content": [TEXT]},
        {"role": "assistant", "tool_plan": "p", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "document", "document": {"data": "x"}}]},
    ],
    "tools": [TOOL], "documents": [{"id": "1", "data": {"text": "t"}}], "max_tokens": 3,
}  # fmt: skip
CHATS: list[dict[str, Any]] = [
    CHAT | SAMPLING | {"logprobs": True, "top_logprobs": 2},
    CHAT | {"stream": True, "stream_options": {"include_usage": True}},
    CHAT | {"tools": [TOOL], "tool_choice": "required"},
    CHAT | {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": PARAMETERS}}},
    *(CHAT | {"structured_outputs": each} for each in ({"regex": "a{2,3}[^x]"}, {"choice": ["a", "b"]})),
]
BODIES: list[tuple[str, dict[str, Any]]] = [
    *(("/v1/chat/completions", each) for each in CHATS),
    ("/v1/chat/completions/batch", CHAT | {"messages": [CHAT["messages"]] * 2}),
    ("/v1/completions", {"prompt": "hello", "max_tokens": 3, "echo": True, "logprobs": 1}),
    ("/v1/completions", {"prompt": [[65, 66], [67]], "max_tokens": 3} | SAMPLING),
    ("/v1/completions", {"prompt_embeds": "AAAA", "max_tokens": 1}),
    ("/v1/responses", RESPONSE),
    ("/v1/messages", ANTHROPIC),
    ("/v1/messages/count_tokens", ANTHROPIC),
    ("/cohere/v2/chat", COHERE),
    ("/tokenize", CHAT | {"tools": [TOOL]}),
    ("/detokenize", {"tokens": [65, 66]}),
    ("/inference/v1/generate", {"token_ids": [65, 66], "sampling_params": {"max_tokens": 2, "logprobs": 1}}),
]  # fmt: skip
MOST_BYTES = 8192  # of a refusal, whatever it repeats of what was sent
# What JSON can hold and JSON libraries do not write.
ODD = (
    "[" * 50_000 + "]" * 50_000, '{"a":' * 30_000 + "1" + "}" * 30_000, "1" * 5000, "1" + "0" * 400, "1e400", "NaN",
    '"\\ud800"', '"\\u0000"', json.dumps("[" * 50_000), json.dumps("{"),
)  # fmt: skip
_SCALAR = re.compile(r'(?<=: )(?:"(?:[^"\\]|\\.)*"|\d+|true|null)')


def broken_body(chance: random.Random, body: dict[str, Any]) -> bytes:
    text = json.dumps(broken_json(chance, body))
    if chance.random() < 0.2 and (places := [found.span() for found in _SCALAR.finditer(text)]):
        start, end = chance.choice(places)
        text = text[:start] + chance.choice(ODD) + text[end:]
    content = text.encode()
    return broken_bytes(chance, content) if chance.random() < 0.1 else content


async def test_bodies_that_are_almost_right(tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    model, executor = ModelOptions(model=str(tmp_path), served_model_name=("fake",)), FakeExecutor(8192)
    async with running_engine(executor, model, enable_prompt_embeds=True, max_model_len=256) as engine:
        router = Router(RouterOptions(workers=(engine.address,)), GrpcServerOptions(), SECURITY)
        await router.start()
        async with (
            running_tokenizer(tmp_path) as tokenizer,
            gateway_before(
                [f"127.0.0.1:{router.server.port}"], [f"127.0.0.1:{tokenizer.port}"], enable_scale_out=True,
                tools=ToolOptions(tool_call_parser="hermes", enable_auto_tool_choice=True),
            ) as gateway,
        ):  # fmt: skip
            chance, left, wrong = chances(), iter(range(NUM_CASES)), list[str]()
            statuses = set[int]()

            async def one_after_another() -> None:
                for _ in left:
                    path, body = chance.choice(BODIES)
                    content = broken_body(chance, body)
                    headers = {"content-type": "application/json"}
                    answer = await gateway.client.post(path, content=content, headers=headers)
                    statuses.add(answer.status_code)
                    # The only reason for 5xx that is nobody's fault: an answer of all tokens that fit may take long.
                    if answer.status_code >= 500 and answer.status_code != 504:
                        wrong.append(f"{path}: {answer.status_code} {answer.text[:300]} after {content[:1000]!r}")
                    if answer.status_code >= 400 and len(answer.content) > MOST_BYTES:
                        wrong.append(f"{path}: {len(answer.content)} bytes say what is wrong with {content[:1000]!r}")

            with tracebacks() as found:
                await asyncio.gather(*(one_after_another() for _ in range(4)))
            assert not wrong + found, "\n\n".join(wrong + found)
            assert {200, 400} <= statuses
            assert gateway.context.pipeline.num_live == gateway.context.statistics.num_live == 0
        await router.close()
