"""No field that vLLM clients send is silently dropped: it works, or is refused unless its value is a no-op."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gateway.endpoints.body import decode_json
from gateway.protocol import unknown
from gateway.protocol.chat import ChatCompletionRequest
from gateway.protocol.common import StreamOptions
from gateway.protocol.completions import CompletionRequest
from gateway.protocol.constraints import StructuredOutputs
from gateway.protocol.generate import GenerateRequest, GenerateSampling
from gateway.protocol.pooling import EmbeddingRequest
from gateway.protocol.responses import ResponsesRequest
from gateway.protocol.tokens import TokenizeRequest
from gateway.protocol.unknown import UnknownFields
from gateway.requests.refused import check_refused
from quire.compatibility.fields import FIELDS
from quire.compatibility.refused_fields import REFUSED, Refused
from quire.errors import InvalidRequest
from tests.support.gateway_stack import GatewayStack

CHAT = {"messages": [{"role": "user", "content": "A"}], "max_tokens": 2}
COMPLETION = {"prompt": "A", "max_tokens": 2}
# vLLM's fields, of both endpoints and of each alone.
BOTH = """
    model frequency_penalty presence_penalty logit_bias logprobs max_tokens n response_format seed stop stream
    stream_options temperature top_p user use_beam_search top_k min_p repetition_penalty length_penalty stop_token_ids
    include_stop_str_in_output ignore_eos min_tokens skip_special_tokens spaces_between_special_tokens
    truncate_prompt_tokens truncation_side prompt_logprobs logprob_token_ids allowed_token_ids bad_words echo
    add_special_tokens media_io_kwargs mm_processor_kwargs structured_outputs priority request_id session_id
    return_tokens_as_token_ids return_token_ids return_weight_versions return_prompt_text return_token_offsets
    cache_salt kv_transfer_params ec_transfer_params vllm_xargs repetition_detection thinking_token_budget
    include_reasoning stream_interval watermarking routed_experts_prompt_start mm_payload suffix best_of prompt_embeds
    guided_json guided_regex guided_choice guided_grammar guided_decoding_backend guided_whitespace_pattern
    logits_processors
"""
CHAT_ONLY = """
    messages top_logprobs max_completion_tokens tools tool_choice reasoning_effort parallel_tool_calls functions
    function_call add_generation_prompt continue_final_message documents chat_template chat_template_kwargs modalities
    audio
"""


@pytest.mark.parametrize(
    ("kind", "fields"), [(ChatCompletionRequest, BOTH + CHAT_ONLY), (CompletionRequest, BOTH + " prompt")]
)
def test_every_field_is_known(kind: type[msgspec.Struct], fields: str) -> None:
    assert set(fields.split()) <= set(kind.__struct_fields__)


def test_the_page_of_compatibility_has_all() -> None:
    assert set(f"{BOTH} {CHAT_ONLY} prompt".split()) <= FIELDS.keys() | REFUSED.keys()
    assert FIELDS.keys() <= {*ChatCompletionRequest.__struct_fields__, *CompletionRequest.__struct_fields__}


def test_what_asks_for_nothing_passes() -> None:
    known = {*ChatCompletionRequest.__struct_fields__, *GenerateRequest.__struct_fields__}
    assert set(REFUSED) <= known
    for name, refused in REFUSED.items():
        for value in (None, *refused.neutral):
            check_refused(decode_json(msgspec.json.encode(CHAT | {name: value}), ChatCompletionRequest))


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (ChatCompletionRequest, CHAT), (CompletionRequest, {}), (StreamOptions, {}), (StructuredOutputs, {}),
        (TokenizeRequest, {}), (ResponsesRequest, {"input": "A"}), (EmbeddingRequest, {"input": "A"}),
        (GenerateSampling, {}),
    ],
)  # fmt: skip
def test_null_is_the_same_as_absent(kind: type[msgspec.Struct], body: dict[str, Any]) -> None:
    absent = decode_json(msgspec.json.encode(body), kind)
    for field in msgspec.structs.fields(kind):
        if not field.required:
            found = decode_json(msgspec.json.encode({field.name: None} | body), kind)
            got, expected = getattr(found, field.name), getattr(absent, field.name)
            assert got == expected or bytes(got) == b"null", field.name


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"max_tokens": 2.0, "seed": -5.0, "temperature": 1.0}, {"max_tokens": 2, "seed": -5, "temperature": 1.0}),
        ({"prompt": [1.0, 2.00], "stop_token_ids": [3.0]}, {"prompt": [1, 2], "stop_token_ids": [3]}),
        ({"max_tokens": 2.0, "prompt": 'say "1.0", 2.0'}, {"max_tokens": 2, "prompt": 'say "1.0", 2.0'}),
    ],
)
def test_whole_numbers_may_be_written_as_fractions(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    found = decode_json(msgspec.json.encode(fields), CompletionRequest)
    assert {name: getattr(found, name) for name in expected} == expected


@pytest.mark.parametrize("value", [1.5, "1", True, [1.0]])
def test_what_is_no_whole_number_is_none(value: Any) -> None:
    with pytest.raises(InvalidRequest, match="max_tokens: Expected `int"):
        decode_json(msgspec.json.encode({"max_tokens": value}), CompletionRequest)


def test_what_only_equals_nothing_does_not_pass() -> None:
    body = decode_json(msgspec.json.encode(CHAT | {"mm_payload": 0}), ChatCompletionRequest)
    with pytest.raises(InvalidRequest, match="mm_payload is refused"):
        check_refused(body, {"mm_payload": Refused("no reason", (False,))})


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(("path", "body"), [("/v1/chat/completions", CHAT), ("/v1/completions", COMPLETION)])
async def test_what_is_not_built_is_refused(gateway: GatewayStack, path: str, body: dict[str, Any]) -> None:
    for name in REFUSED.keys() & set(BOTH.split()):
        response = await gateway.post(path, body | {name: {"asks": "for something"}})
        error = response.json()["error"]
        assert (response.status_code, error["param"]) == (400, name)
        assert "is refused: " in error["message"]


@pytest.mark.asyncio(loop_scope="module")
async def test_unknown_fields_are_taken_and_told_once(gateway: GatewayStack, caplog: pytest.LogCaptureFixture) -> None:
    gateway.context.unknown_fields = UnknownFields()
    for _ in range(3):
        await gateway.complete(store=False, metadata={"a": "b"})
    [line] = [record.message for record in caplog.records if record.name == unknown.__name__]
    assert line == "ignored in a CompletionRequest, as Quire does not know them: 'metadata', 'store'"


def test_what_the_log_is_told_is_short_and_harmless(caplog: pytest.LogCaptureFixture) -> None:
    body = {f"a\n{number:03d}" + "x" * 1000: 1 for number in range(500)}
    UnknownFields().look(msgspec.json.encode(body), CompletionRequest)
    [line] = caplog.messages
    assert len(line) < 2000
    assert "\n" not in line
    UnknownFields().look(b'{"prompt": "A"}', CompletionRequest)
    UnknownFields().look(b'{"odd": "' + b"x" * unknown.MAX_BYTES + b'"}', CompletionRequest)
    UnknownFields().look(b'{"\xff": 1}', CompletionRequest)
    assert len(caplog.messages) == 1


@pytest.mark.asyncio(loop_scope="module")
async def test_embeddings_need_an_engine_that_takes_them(gateway: GatewayStack) -> None:
    response = await gateway.post("/v1/completions", {"prompt": "", "prompt_embeds": "AAAA"})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "prompt_embeds")
    assert "--enable-prompt-embeds" in response.json()["error"]["message"]
    response = await gateway.post("/v1/chat/completions", CHAT | {"prompt_embeds": "AAAA"})
    assert "use /v1/completions" in response.json()["error"]["message"]
    for name in ("echo", "return_prompt_text"):
        response = await gateway.post("/v1/completions", {"prompt": "", "prompt_embeds": "AAAA", name: True})
        assert (response.status_code, response.json()["error"]["param"]) == (400, name)
