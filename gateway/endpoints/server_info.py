"""`GET /server_info`: the gateway's options and environment, for developers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from gateway.context import context_of
from gateway.errors import json_response
from quire.environment.collect import collect, variables
from quire.environment.command import secret_names
from quire.environment.secrets import HIDDEN, without_secrets
from quire.errors import InvalidRequest
from quire.options.base import values_of
from quire.options.gateway import GatewayOptions

_FORMATS = ("text", "json")


async def server_info(request: Request) -> Response:
    """Returns options, environment variables and the machine, under vLLM's names; without secrets.

    Raises:
        InvalidRequest: config_format is neither text nor json.
    """
    form = request.query_params.get("config_format", "text")
    if form not in _FORMATS:
        raise InvalidRequest(f"config_format is {form[:50]!r}; it must be text or json.", parameter="config_format")
    names = secret_names()
    options = options_told(context_of(request).options, names)
    machine = await asyncio.to_thread(collect, names)
    config = options if form == "json" else ", ".join(f"{name}={value!r}" for name, value in options.items())
    return json_response({"vllm_config": config, "vllm_env": variables(os.environ, names), "system_env": machine})


def options_told(options: GatewayOptions, secret: Collection[str]) -> Mapping[str, Any]:
    """Returns each option's value, with secrets hidden."""
    return {field.name: _told(field.environment_variable, value, secret) for field, value in values_of(options)}


def _told(name: str, value: Any, secret: Collection[str]) -> Any:
    if name in secret:
        return HIDDEN if value else value
    if isinstance(value, str):
        return without_secrets(name, value)
    return [_told(name, item, secret) for item in value] if isinstance(value, tuple) else value
