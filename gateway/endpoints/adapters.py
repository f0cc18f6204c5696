"""`POST /v1/load_lora_adapter` and `/v1/unload_lora_adapter`, if the server allows changing adapters at run time."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from gateway.context import context_of
from gateway.endpoints.body import read_json
from gateway.protocol.adapters import LoadAdapterRequest, UnloadAdapterRequest
from gateway.requests.field_names import told_as
from gateway.requests.served_model import Adapter
from quire.bounds import check_adapter_name
from quire.errors import InvalidRequest

_MOST_WAIT_SECONDS = 600.0
_NAMES = {"name": "lora_name", "path": "lora_path"}  # the workers' field names → the client's


async def load_adapter(request: Request) -> Response:
    """Loads an adapter on all workers."""
    body = await read_json(request, LoadAdapterRequest)
    check_adapter_name("lora_name", body.lora_name)
    if not body.lora_path:
        raise InvalidRequest("lora_path is empty; name the adapter's folder.", parameter="lora_path")
    adapter = Adapter(body.lora_name, body.lora_path, "", body.base_model_name or "")
    with told_as(_NAMES):
        await context_of(request).fleet.load_adapter(adapter, body.load_inplace)
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' added successfully.")


async def unload_adapter(request: Request) -> Response:
    """Unloads an adapter from all workers."""
    body = await read_json(request, UnloadAdapterRequest)
    check_adapter_name("lora_name", body.lora_name)
    if not 0 <= body.wait_seconds <= _MOST_WAIT_SECONDS:
        raise InvalidRequest(
            f"wait_seconds is {body.wait_seconds:g}; it must be from 0 to {_MOST_WAIT_SECONDS:g}.",
            parameter="wait_seconds",
        )
    with told_as(_NAMES):
        left = await context_of(request).fleet.unload_adapter(body.lora_name, body.wait_seconds)
    still = f" {left} requests are still running with it." if left else ""
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.{still}")
