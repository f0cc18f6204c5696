"""What `/openapi.json` says about the server; schemathesis checks that it is true (tests/clients)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from gateway.app import routes
from gateway.middleware.authentication import public_paths
from gateway.requests.field_schemas import limits
from quire.options.gateway import GatewayOptions
from tests.support.gateway_stack import GatewayStack, running_gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def described(gateway: GatewayStack) -> dict[str, Any]:
    document: dict[str, Any] = (await gateway.client.get("/openapi.json")).json()
    return document


async def test_it_covers_every_route_and_method(gateway: GatewayStack) -> None:
    document = await described(gateway)
    served = {
        (route.path.replace(":path", ""), method.lower())
        for route in routes(GatewayOptions(disable_fastapi_docs=True, page=False))
        for method in (route.methods or set()) - {"HEAD"}
    }
    assert {(path, method) for path, methods in document["paths"].items() for method in methods} == served
    for reference in set(re.findall(r"#/components/schemas/([\w.]+)", str(document))):
        assert reference in document["components"]["schemas"]


@pytest.mark.parametrize("metrics_without_key", [False, True])
async def test_it_asks_for_keys_where_the_server_does(
    gateway: GatewayStack, tokenizer_folder: Path, metrics_without_key: bool
) -> None:
    document = await described(gateway)
    assert "security" not in str(document)
    assert '"401"' not in str(document)
    async with running_gateway(tokenizer_folder, api_key=("key",), metrics_without_key=metrics_without_key) as locked:
        assert (await locked.client.get("/metrics")).status_code == (200 if metrics_without_key else 401)
        assert (await locked.client.get("/load")).status_code == 401
        locked.client.headers["authorization"] = "Bearer key"
        document = await described(locked)
    assert document["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
    for path, methods in document["paths"].items():
        for operation in methods.values():
            is_public = path.encode() in public_paths(metrics_without_key)
            assert ("security" in operation, "401" in operation["responses"]) == (not is_public, not is_public), path


async def test_fields_have_their_bounds(gateway: GatewayStack) -> None:
    schemas = (await described(gateway))["components"]["schemas"]
    chat, batch, completion = (
        schemas[name]["properties"] for name in ("ChatCompletionRequest", "ChatBatchRequest", "CompletionRequest")
    )
    assert (chat["temperature"]["minimum"], chat["temperature"]["maximum"]) == (0, 2)
    assert completion["top_p"]["exclusiveMinimum"] == 0
    assert chat["ec_transfer_params"]["enum"] == [None]
    assert batch["messages"]["items"]["items"] == chat["messages"]["items"]
    requests = [schema["properties"] for name, schema in schemas.items() if name.endswith("Request")]
    for field in limits():
        assert any(field in fields for fields in requests), field


async def test_streams_are_described_by_their_events(gateway: GatewayStack) -> None:
    answers = (await described(gateway))["paths"]["/v1/chat/completions"]["post"]["responses"]["200"]["content"]
    assert set(answers) == {"application/json", "text/event-stream"}
    assert "#/components/schemas/ChatCompletionChunk" in str(answers["text/event-stream"])


async def test_transcriptions_are_described_in_all_formats(gateway: GatewayStack) -> None:
    document = await described(gateway)
    for path in ("/v1/audio/transcriptions", "/v1/audio/translations"):
        answers = document["paths"][path]["post"]["responses"]["200"]["content"]
        assert set(answers) == {"application/json", "text/plain", "text/vtt", "text/event-stream"}
        assert "#/components/schemas/VerboseTranscription" in str(answers["application/json"])
    form = document["components"]["schemas"]["TranscriptionRequest"]["properties"]
    assert set(form["response_format"]["enum"]) == {"json", "text", "verbose_json", "srt", "vtt"}
