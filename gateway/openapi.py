"""`/openapi.json` and `/docs`, made from the protocol structs."""

from __future__ import annotations

import functools
import re
from importlib import resources
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

import quire
from gateway.errors import ErrorResponse, json_response
from gateway.protocol.chat import ChatBatchRequest, ChatCompletion, ChatCompletionRequest
from gateway.protocol.completions import Completion, CompletionRequest
from gateway.protocol.tokens import (
    DetokenizeRequest,
    DetokenizeResponse,
    ModelCard,
    ModelList,
    TokenizeRequest,
    TokenizeResponse,
)

# Path → (method, request, answer, what it does).
_OPERATIONS: dict[str, tuple[str, type | None, type | None, str]] = {
    "/v1/chat/completions": ("post", ChatCompletionRequest, ChatCompletion, "Continues a conversation."),
    "/v1/chat/completions/batch": ("post", ChatBatchRequest, ChatCompletion, "Continues many conversations alike."),
    "/v1/completions": ("post", CompletionRequest, Completion, "Continues prompts."),
    "/invocations": ("post", None, None, "As /v1/chat/completions or /v1/completions, by the fields of the body."),
    "/v1/models": ("get", None, ModelList, "Lists the served models."),
    "/v1/models/{model}": ("get", None, ModelCard, "One of them."),
    "/tokenize": ("post", TokenizeRequest, TokenizeResponse, "Turns text or a conversation into token ids."),
    "/detokenize": ("post", DetokenizeRequest, DetokenizeResponse, "Turns token ids into text."),
    "/health": ("get", None, None, "Answers 200 while requests can be served."),
    "/ping": ("get", None, None, "As /health."),
    "/livez": ("get", None, None, "Answers 200 while the process runs."),
    "/readyz": ("get", None, None, "As /health."),
    "/version": ("get", None, None, "Quire's version."),
    "/load": ("get", None, None, "Requests under way in this gateway."),
    "/metrics": ("get", None, None, "Prometheus metrics."),
}
_PARAMETER = re.compile(r"\{(\w+)\}")
_CSP = "default-src 'none'; connect-src 'self'; script-src 'self'; style-src 'self'; base-uri 'none'"
_TYPES = {"docs.html": "text/html", "docs.js": "text/javascript", "docs.css": "text/css"}


@functools.cache
def _document() -> dict[str, Any]:
    structs = [kind for _, *kinds, _ in _OPERATIONS.values() for kind in kinds if isinstance(kind, type)]
    schemas, components = msgspec.json.schema_components(
        [*structs, ErrorResponse], ref_template="#/components/schemas/{name}"
    )
    refs = dict(zip([*structs, ErrorResponse], schemas, strict=True))
    paths = {path: {operation[0]: _operation(path, operation, refs)} for path, operation in _OPERATIONS.items()}
    security = {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}}
    return {
        "openapi": "3.1.0", "info": {"title": "Quire", "version": quire.__version__}, "paths": paths,
        "components": {"schemas": components, **security}, "security": [{"key": []}],
    }  # fmt: skip


def _operation(
    path: str, operation: tuple[str, type | None, type | None, str], refs: dict[type, dict[str, Any]]
) -> dict[str, Any]:
    _, request, answer, text = operation
    success: dict[str, Any] = {"description": "Success."}
    if answer:
        success["content"] = {"application/json": {"schema": refs[answer]}}
    failure = {"description": "Failure.", "content": {"application/json": {"schema": refs[ErrorResponse]}}}
    described: dict[str, Any] = {"summary": text, "responses": {"200": success, "default": failure}}
    if names := _PARAMETER.findall(path):
        described["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
        ]
    if request:
        described["requestBody"] = {"required": True, "content": {"application/json": {"schema": refs[request]}}}
    return described


async def openapi_json(request: Request) -> Response:
    """The OpenAPI document."""
    return json_response(_document())


async def docs(request: Request) -> Response:
    """A page that shows the document and sends requests; all of it comes from here."""
    name = request.path_params.get("asset", "docs.html")
    if name not in _TYPES:
        return Response(status_code=404)
    content = (resources.files("gateway") / "static" / name).read_bytes()
    return Response(content, media_type=_TYPES[name], headers={"content-security-policy": _CSP})
