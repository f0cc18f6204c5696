"""Keys, probes, metrics, documentation, request ids, CORS."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import pytest
import pytest_asyncio

from quire.errors import StartupError
from quire.options.gateway import GatewayOptions
from tests.support.fake_engine import FakeOptions
from tests.support.gateway_stack import GatewayStack, running_gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")

PUBLIC = {"/health", "/ping", "/livez", "/readyz"}
# vLLM's metric names → type, as its dashboards query them.
VLLM_METRICS = {
    "num_requests_running": "gauge", "num_requests_waiting": "gauge", "kv_cache_usage_perc": "gauge",
    "prefix_cache_queries": "counter", "prefix_cache_hits": "counter", "num_preemptions": "counter",
    "prompt_tokens": "counter", "generation_tokens": "counter", "request_success": "counter",
    "request_prompt_tokens": "histogram", "request_generation_tokens": "histogram",
    "iteration_tokens_total": "histogram", "request_max_num_generation_tokens": "histogram",
    "request_params_n": "histogram", "request_params_max_tokens": "histogram",
    "time_to_first_token_seconds": "histogram", "inter_token_latency_seconds": "histogram",
    "e2e_request_latency_seconds": "histogram", "request_queue_time_seconds": "histogram",
    "request_inference_time_seconds": "histogram", "request_prefill_time_seconds": "histogram",
    "request_decode_time_seconds": "histogram",
}  # fmt: skip


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def locked(tokenizer_folder: Path) -> AsyncIterator[GatewayStack]:
    """A gateway with two keys."""
    options = {"api_key": ("key-one", "key-two"), "allowed_origins": ("https://app.example",)}
    async with running_gateway(tokenizer_folder, **options) as stack:
        yield stack


async def test_below_a_proxys_path_the_same_is_public(tokenizer_folder: Path) -> None:
    """Public paths work with and without a proxy's prefix: some proxies strip it, and orchestrators do not know it."""
    async with running_gateway(tokenizer_folder, root_path="/llm/", api_key=("key",)) as stack:
        for path, keyless, keyed in (
            ("/health", 200, 200), ("/llm/health", 200, 200), ("/llm/llm/health", 401, 404),
            ("/v1/models", 401, 200), ("/llm/v1/models", 401, 200), ("/llm/llm/v1/models", 401, 404),
            ("/docs", 401, 200), ("/llm/docs", 401, 200), ("/%6clm/health", 401, 200),
            ("/", 200, 200), ("/llm/", 200, 200), ("/llm", 200, 200), ("/llmx", 401, 404),
        ):  # fmt: skip
            assert (await stack.client.get(path)).status_code == keyless, path
            answer = await stack.client.get(path, headers={"authorization": "Bearer key"})
            assert answer.status_code == keyed, path


@pytest.mark.parametrize(
    "header",
    ["", "key-one", "Basic key-one", "Bearer", "Bearer key-on", "Bearer key-one2", "Bearer KEY-ONE"],
)
async def test_wrong_keys(locked: GatewayStack, header: str) -> None:
    response = await locked.client.get("/v1/models", headers={"authorization": header})
    assert response.status_code == 401


async def test_keys_keep_cached_prefixes_apart(locked: GatewayStack) -> None:
    salts = []
    for key, salt in (("key-one", None), ("key-two", None), ("key-one", "s"), ("key-two", "s"), ("key-one", None)):
        body = {"prompt": "A", "max_tokens": 1} | ({"cache_salt": salt} if salt else {})
        response = await locked.post("/v1/completions", body, authorization=f"Bearer {key}")
        assert response.status_code == 200
        salts.append(locked.engine.record.started[-1].cache_salt)
    assert len(set(salts[:4])) == 4
    assert salts[0] == salts[4]
    assert not any("key" in salt for salt in salts)


async def test_browsers_of_allowed_origins(locked: GatewayStack) -> None:
    asks = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    allowed = await locked.client.options("/v1/completions", headers={"origin": "https://app.example"} | asks)
    assert allowed.status_code == 200
    assert allowed.headers["access-control-allow-origin"] == "https://app.example"
    other = await locked.client.options("/v1/completions", headers={"origin": "https://evil.example"} | asks)
    assert "access-control-allow-origin" not in other.headers


async def test_request_ids(gateway: GatewayStack) -> None:
    response = await gateway.post("/v1/completions", {"prompt": "A", "max_tokens": 1}, **{"x-request-id": "abc-1"})
    assert response.headers["x-request-id"] == "abc-1"
    assert response.json()["id"] == "cmpl-abc-1"
    made_up = (await gateway.client.get("/version", headers={"x-request-id": "not ok"})).headers["x-request-id"]
    assert re.fullmatch(r"[0-9a-f]{32}", made_up)


async def test_metrics_have_vllms_names(gateway: GatewayStack) -> None:
    await gateway.complete()
    text = (await gateway.client.get("/metrics")).text
    types = dict(re.findall(r"^# TYPE vllm:(\w+) (\w+)$", text, re.M))
    for name, kind in VLLM_METRICS.items():
        assert types.get(name) == kind or types.get(f"{name}_total") == kind, name
    labels = r'\{engine="0",(finished_reason="length",)?model_name="fake"\}'
    assert re.search(rf"^vllm:request_success_total{labels} [1-9]", text, re.M)
    assert re.search(rf"^vllm:time_to_first_token_seconds_count{labels} [1-9]", text, re.M)
    assert not re.search(r"^vllm:request_success_created", text, re.M)
    assert "quire_num_requests_running" in text


async def test_the_docs_page_needs_nothing_from_elsewhere(gateway: GatewayStack) -> None:
    page = await gateway.client.get("/docs")
    assert page.status_code == 200
    assert "default-src 'none'" in page.headers["content-security-policy"]
    for asset in re.findall(r'(?:src|href)="([^"]+)"', page.text):
        assert not asset.startswith(("http", "//"))
        assert (await gateway.client.get(urljoin("/docs", asset))).status_code == 200


async def test_probes(gateway: GatewayStack) -> None:
    for path in PUBLIC:
        response = await gateway.client.get(path)
        assert (response.status_code, response.content) == (200, b"")
    assert (await gateway.client.get("/version")).json() == {"version": "0.1.0"}
    assert (await gateway.client.get("/load")).json() == {"server_load": 0}


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"host": "0.0.0.0"}, "--api-key"),
        ({"ssl_certfile": "x"}, "--ssl-keyfile"),
        ({"allowed_origins": ("*",), "allow_credentials": True}, "--allow-credentials"),
    ],
)
async def test_dangerous_options_are_refused(options: dict[str, Any], part: str) -> None:
    with pytest.raises(StartupError, match=part):
        GatewayOptions(**options).check()


async def test_a_model_has_the_names_that_the_router_gives_it(tokenizer_folder: Path) -> None:
    async with running_gateway(
        tokenizer_folder, router_options={"model_alias": ("nick=fake", "absent=other")}
    ) as stack:
        listed = (await stack.client.get("/v1/models")).json()["data"]
        assert [card["id"] for card in listed] == ["fake", "nick"]
        answer = await stack.complete(model="nick")
        assert answer["model"] == "nick"
        assert {request.model for request in stack.engine.record.started} == {"fake"}
        assert (await stack.post("/v1/completions", {"model": "absent", "prompt": [1]})).status_code == 404


async def test_a_model_of_many_names_answers_by_its_first(tokenizer_folder: Path) -> None:
    names = ("Qwen/Qwen3-0.6B", "qwen")
    async with running_gateway(
        tokenizer_folder, FakeOptions(models=names), router_options={"model_alias": ("nick=qwen",)}
    ) as stack:
        for asked, told in ((names[0], names[0]), (names[1], names[0]), (None, names[0]), ("nick", "nick")):
            assert (await stack.complete(model=asked))["model"] == told
        for path in ("Qwen/Qwen3-0.6B", "Qwen%2FQwen3-0.6B", "qwen", "nick"):
            card = (await stack.client.get(f"/v1/models/{path}")).json()
            assert (card["id"], card["object"]) == (path.replace("%2F", "/"), "model")
        missing = await stack.client.get("/v1/models/Qwen/other")
        assert missing.status_code == 404
        assert (missing.json()["error"]["type"], missing.json()["error"]["param"]) == ("NotFoundError", "model")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_an_answer_may_tell_of_the_load(gateway: GatewayStack, path: str) -> None:
    body = {"messages": [{"role": "user", "content": "A"}]} if "chat" in path else {"prompt": "A"}

    async def told(**headers: str) -> str | None:
        answer = await gateway.post(path, body | {"max_tokens": 1}, **headers)
        assert answer.status_code == 200
        return answer.headers.get("endpoint-load-metrics")

    assert await told() is None
    text = await told(**{"endpoint-load-metrics-format": "text"}) or ""
    assert re.fullmatch(
        r"TEXT named_metrics.kv_cache_usage_perc=[\d.]+, named_metrics.num_requests_waiting=\d+", text
    )  # fmt: skip
    kind, _, figures = (await told(**{"endpoint-load-metrics-format": "JSON"}) or "").partition(" ")
    assert kind == "JSON"
    assert json.loads(figures)["named_metrics"].keys() == {"kv_cache_usage_perc", "num_requests_waiting"}
