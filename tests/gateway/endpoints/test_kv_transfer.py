"""`kv_transfer_params`: a proxy has one server compute a prompt, and another one continue with its KV blocks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from gateway.endpoints.kv_transfer import taking_part
from gateway.main import make_context
from gateway.protocol.common import KvTransferParams
from quire.errors import InvalidRequest, StartupError
from quire.options.gateway import GatewayOptions
from quire.options.server import RpcSecurityOptions
from tests.support.fake_engine import FakeOptions
from tests.support.gateway_stack import GatewayStack, running_gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")

# As llm-d's sidecar and vLLM's example of a proxy send it.
PREFILL = {
    "do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None, "remote_block_ids": None,
    "remote_host": None, "remote_port": None,
}  # fmt: skip
GENERATE, MESSAGES, RESPONSES = "/inference/v1/generate", "/v1/messages", "/v1/responses"
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": [65], "max_tokens": 3},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "A"}], "max_tokens": 3},
    RESPONSES: {"input": "A", "max_output_tokens": 3},
    GENERATE: {"token_ids": [65], "sampling_params": {"max_tokens": 3}},
    MESSAGES: {"messages": [{"role": "user", "content": "A"}], "max_tokens": 3},
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tokenizer_folder: Path) -> AsyncIterator[GatewayStack]:
    """Both servers in one."""
    engine = FakeOptions(step_seconds=0.001, kv_role="kv_both", kv_connector="GrpcConnector")
    async with running_gateway(
        tokenizer_folder, engine, enable_kv_transfer_params=True, enable_scale_out=True,
        security=RpcSecurityOptions(grpc_token="shared"),
    ) as stack:  # fmt: skip
        yield stack


async def prefilled(server: GatewayStack, path: str = "/v1/completions", **fields: Any) -> dict[str, Any]:
    """What the answer to a prefill request says."""
    response = await server.post(path, BODIES[path] | {"kv_transfer_params": PREFILL} | fields)
    assert response.status_code == 200, response.text
    return dict(response.json()["kv_transfer_params"])


async def refusal(server: GatewayStack, params: Any, **fields: Any) -> str:
    before = len(server.engine.record.started)
    body = BODIES["/v1/completions"] | {"kv_transfer_params": params}
    response = await server.post("/v1/completions", body | fields)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == "kv_transfer_params"
    assert len(server.engine.record.started) == before
    return str(response.json()["error"]["message"])


@pytest.mark.parametrize("path", BODIES)
async def test_the_other_server_is_told_where_the_blocks_are(server: GatewayStack, path: str) -> None:
    """Its answers are the same, streamed or not."""
    params = await prefilled(server, path)
    address = server.engine.address
    host, port = address.split(":")
    assert {key: params[key] for key in PREFILL} == {
        "do_remote_decode": False, "do_remote_prefill": True, "remote_engine_id": address, "remote_block_ids": None,
        "remote_host": host, "remote_port": int(port),
    }  # fmt: skip
    assert server.engine.record.started[-1].remote_decode
    decoding = BODIES[path] | {"kv_transfer_params": params | {"tp_size": 1, "remote_request_id": "r"}}
    plain, answer = [(await server.post(path, body)).json() for body in (BODIES[path], decoding)]
    for key in ("choices", "output", "content"):
        assert _without_ids(answer.get(key)) == _without_ids(plain.get(key))
    assert "kv_transfer_params" not in answer
    _, told = server.engine.record.started[-2:]
    assert (told.kv_source, told.remote_decode) == (address, False)
    assert (await server.post(path, decoding | {"stream": True})).status_code == 200
    assert server.engine.record.started[-1].kv_source == address


def _without_ids(found: Any) -> Any:
    return [{key: value for key, value in each.items() if key != "id"} for each in found or ()]


@pytest.mark.parametrize("path", [path for path in BODIES if path not in (MESSAGES, RESPONSES)])
@pytest.mark.parametrize("usage", [False, True])
async def test_streams_end_with_it(server: GatewayStack, path: str, usage: bool) -> None:
    options = {"stream_options": {"include_usage": True}} if usage else {}
    events = await server.events(path, BODIES[path] | options | {"kv_transfer_params": PREFILL})
    *others, last, done = events
    assert done == "[DONE]"
    assert last["kv_transfer_params"]["remote_engine_id"] == server.engine.address
    assert (last["choices"], "usage" in last) == ([], usage)
    assert not any("kv_transfer_params" in each for each in others)


@pytest.mark.parametrize(("path", "last"), [(MESSAGES, "message_delta"), (RESPONSES, "response.incomplete")])
async def test_streams_with_named_events_end_with_it(server: GatewayStack, path: str, last: str) -> None:
    text = (await server.post(path, BODIES[path] | {"kv_transfer_params": PREFILL, "stream": True})).text
    (found,) = [part for part in text.split("\n\n") if "kv_transfer_params" in part]
    assert found.startswith(f"event: {last}\n")
    assert server.engine.address in found


async def test_it_may_be_among_the_arguments_of_sampling(server: GatewayStack) -> None:
    sampling = {"max_tokens": 1, "extra_args": {"kv_transfer_params": PREFILL, "x": 1}}
    response = await server.post(GENERATE, {"token_ids": [65], "sampling_params": sampling})
    assert response.json()["kv_transfer_params"]["do_remote_prefill"]
    assert server.engine.record.started[-1].sampling.vllm_xargs == b'{"x":1}'
    sampling["extra_args"] = {"kv_transfer_params": {"remote_port": "x"}}
    response = await server.post(GENERATE, {"token_ids": [65], "sampling_params": sampling})
    assert "kv_transfer_params of sampling_params.extra_args" in response.json()["error"]["message"]


async def test_several_choices_of_a_prompt_share_its_blocks(server: GatewayStack) -> None:
    params = await prefilled(server, n=3)
    answer = await server.complete(n=3, kv_transfer_params=params)
    assert len(answer["choices"]) == 3


@pytest.mark.parametrize(
    "changes",
    [
        {"remote_host": "169.254.169.254"}, {"remote_port": 1}, {"expires": 2**40}, {"signature": "0" * 64},
        {"signature": "é"}, {"signature": None}, {"remote_host": None}, {"remote_host": "unix:/tmp/socket"},
    ],
)  # fmt: skip
async def test_addresses_that_no_server_has_signed_are_refused(server: GatewayStack, changes: dict[str, Any]) -> None:
    params = await prefilled(server)
    assert "is not signed by a server with the --grpc-token" in await refusal(server, params | changes)


async def test_what_makes_no_sense_is_refused(server: GatewayStack) -> None:
    params = await prefilled(server)
    assert "sets both" in await refusal(server, params | {"do_remote_decode": True})
    assert "for a single prompt" in await refusal(server, params, prompt=[[65], [66]])
    assert "for a single prompt" in await refusal(server, params, use_beam_search=True, n=2)


@pytest.mark.parametrize("params", [None, {}, {"do_remote_decode": False, "do_remote_prefill": None}])
async def test_what_asks_for_nothing_is_accepted(server: GatewayStack, params: Any) -> None:
    assert "kv_transfer_params" not in await server.complete(kv_transfer_params=params)


async def test_without_the_option_it_is_refused(server: GatewayStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.context, "kv_transfer_key", None)
    assert "--enable-kv-transfer-params" in await refusal(server, PREFILL)


async def test_some_worker_must_be_able_to(server: GatewayStack) -> None:
    params = msgspec.convert(await prefilled(server), KvTransferParams)
    request: Any = None
    context: Any = SimpleNamespace(
        kv_transfer_key=server.context.kv_transfer_key, fleet=SimpleNamespace(lets_pull=True, pulls=False)
    )
    with pytest.raises(InvalidRequest, match="kv_role kv_consumer or kv_both"):
        taking_part(context, params, request)
    context.fleet.lets_pull = False
    with pytest.raises(InvalidRequest, match="kv_role kv_producer or kv_both"):
        taking_part(context, KvTransferParams(do_remote_decode=True), request)


async def test_the_option_needs_a_token() -> None:
    with pytest.raises(StartupError, match="needs --grpc-token"):
        make_context(GatewayOptions(enable_kv_transfer_params=True), RpcSecurityOptions())
