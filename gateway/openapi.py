"""Serves `/openapi.json`, generated from the protocol structs, and `/docs`."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, get_args

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

import quire
from gateway.context import context_of
from gateway.errors import CohereError, ErrorResponse, MessagesError, json_response
from gateway.middleware.authentication import public_paths
from gateway.protocol.aborted import AbortRequests
from gateway.protocol.chat import ChatBatchRequest, ChatCompletion, ChatCompletionChunk, ChatCompletionRequest
from gateway.protocol.cohere_chat import CohereAnswer, CohereChatRequest, CohereEvent
from gateway.protocol.compaction import CompactedResponse, CompactRequest
from gateway.protocol.completions import Completion, CompletionRequest
from gateway.protocol.decisions import DecisionRequest, DecisionResponse, SystemOneRequest, SystemOneResponse
from gateway.protocol.fleet import FleetView, KvEventSource
from gateway.protocol.generate import (
    DerenderChatRequest,
    DerenderChatStreamResponse,
    DerenderCompletionRequest,
    DerenderCompletionStreamResponse,
    GenerateChunk,
    GenerateRequest,
    GenerateResponse,
    RenderedRequest,
)
from gateway.protocol.messages import (
    CountTokensRequest,
    CountTokensResponse,
    MessagesAnswerBody,
    MessagesEvent,
    MessagesRequest,
)
from gateway.protocol.pooling import (
    ClassifyRequest,
    ClassifyResponse,
    CohereEmbedRequest,
    CohereEmbedResponse,
    CohereFloatsResponse,
    EmbeddingRequest,
    EmbeddingResponse,
    PoolingRequest,
    PoolingResponse,
)
from gateway.protocol.response_events import ResponsesEvent
from gateway.protocol.responses import (
    DeletedResponse,
    InputItems,
    InputTokens,
    ResponseBody,
    ResponsesRequest,
)
from gateway.protocol.scoring import (
    GenerativeScoringRequest,
    RerankRequest,
    RerankResponse,
    ScoreRequest,
    ScoreResponse,
)
from gateway.protocol.tokens import (
    DetokenizeRequest,
    DetokenizeResponse,
    ModelCard,
    ModelList,
    TokenizeRequest,
    TokenizeResponse,
)
from gateway.protocol.transcription import (
    SpeechChunk,
    Transcription,
    TranscriptionRequest,
    Translation,
    TranslationRequest,
    VerboseTranscription,
)
from gateway.requests.field_schemas import add_limits


@dataclass(frozen=True)
class _Operation:
    """One operation of a path.

    Attributes:
        text: its summary.
        requests: the types its body may have.
        answers: the types its response may have; empty if the response has no body.
        chunks: the types of a stream's events, if it can stream.
        queries: names and schemas of query parameters, all optional.
        ends_with_done: whether a stream ends with a `[DONE]` event.
        plain: media types of texts that it may answer with instead.
        failures: status codes of its errors.
        failure: type of its error bodies.
        request_type: media type of its body.
    """

    method: str
    path: str
    text: str
    requests: tuple[type, ...] = ()
    answers: tuple[Any, ...] = ()
    chunks: tuple[type, ...] = ()
    ends_with_done: bool = True
    queries: tuple[tuple[str, dict[str, Any]], ...] = ()
    media_type: str = "application/json"
    plain: tuple[str, ...] = ()
    failures: tuple[int, ...] = ()
    failure: type = ErrorResponse
    request_type: str = "application/json"


_ERRORS = (ErrorResponse, MessagesError, CohereError)
_REQUEST = (400, 404, 413, 415, 503, 504)  # status codes of operations that take a body
_MESSAGES = (*_REQUEST, 529)
_FORM = "multipart/form-data"
_SCALE_OUT = (*_REQUEST, 403)
_OPERATIONS = (
    _Operation(
        "post", "/v1/chat/completions", "Continues a conversation.", (ChatCompletionRequest,), (ChatCompletion,),
        (ChatCompletionChunk,), failures=_REQUEST,
    ),
    _Operation(
        "post", "/v1/chat/completions/batch", "Continues several conversations with the same parameters.",
        (ChatBatchRequest,),
        (ChatCompletion,), failures=_REQUEST,
    ),
    _Operation(
        "post", "/v1/completions", "Continues prompts.", (CompletionRequest,), (Completion,), (Completion,),
        failures=_REQUEST,
    ),
    _Operation(
        "post", "/v1/decisions", "Tells how likely each answer to a question is.", (DecisionRequest,),
        (DecisionResponse,), failures=_REQUEST,
    ),
    _Operation(
        "post", "/v1/systemone", "Tells how likely each answer to a question about a state is.", (SystemOneRequest,),
        (SystemOneResponse,), failures=_REQUEST,
    ),
    _Operation(
        "post", "/v1/messages", "Continues a conversation in Anthropic's format.", (MessagesRequest,),
        (MessagesAnswerBody,), get_args(MessagesEvent), ends_with_done=False, failures=_MESSAGES,
        failure=MessagesError,
    ),
    _Operation(
        "post", "/v1/messages/count_tokens", "Counts the tokens of a conversation in Anthropic's format.",
        (CountTokensRequest,), (CountTokensResponse,),
        failures=_MESSAGES, failure=MessagesError,
    ),
    _Operation(
        "post", "/cohere/v2/chat", "Continues a conversation in Cohere's format.", (CohereChatRequest,),
        (CohereAnswer,), get_args(CohereEvent), ends_with_done=False, failures=_REQUEST, failure=CohereError,
    ),
    _Operation(
        "post", "/v1/responses", "Answers a turn of a conversation.", (ResponsesRequest,), (ResponseBody,),
        get_args(ResponsesEvent), ends_with_done=False, failures=_REQUEST,
    ),
    _Operation(
        "post", "/v1/responses/compact", "Summarizes a conversation, to go on from the summary.", (CompactRequest,),
        (CompactedResponse,), failures=_REQUEST,
    ),
    _Operation(
        "post", "/v1/responses/input_tokens", "Counts the tokens of a turn's input.", (ResponsesRequest,),
        (InputTokens,), failures=_REQUEST,
    ),
    _Operation(
        "get", "/v1/responses/{response_id}", "Returns a stored response, or its events.", answers=(ResponseBody,),
        chunks=get_args(ResponsesEvent), ends_with_done=False, failures=(400, 404, 503),
        queries=(("stream", {"type": "boolean"}), ("starting_after", {"type": "integer", "minimum": 0})),
    ),
    _Operation(
        "delete", "/v1/responses/{response_id}", "Deletes a stored response.",
        answers=(DeletedResponse,), failures=(400, 404, 503)
    ),
    _Operation(
        "post", "/v1/responses/{response_id}/cancel", "Cancels a response that is still running.",
        answers=(ResponseBody,), failures=(400, 404, 503)
    ),
    _Operation(
        "post", "/v1/audio/transcriptions", "Writes down what is said in a recording.", (TranscriptionRequest,),
        (Transcription, VerboseTranscription), (SpeechChunk,), plain=("text/plain", "text/vtt"),
        failures=_REQUEST, request_type=_FORM,
    ),
    _Operation(
        "post", "/v1/audio/translations", "Writes down what is said in a recording, in another language.",
        (TranslationRequest,), (Translation, VerboseTranscription), (SpeechChunk,), plain=("text/plain", "text/vtt"),
        failures=_REQUEST, request_type=_FORM,
    ),
    _Operation(
        "post", "/v1/embeddings", "Returns an embedding for each input.", (EmbeddingRequest,), (EmbeddingResponse,),
        failures=_REQUEST,
    ),
    _Operation(
        "post", "/v2/embed", "Returns embeddings in Cohere's format.", (CohereEmbedRequest,), (CohereEmbedResponse,),
        failures=_REQUEST,
    ),
    _Operation(
        "post", "/v1/embed", "Returns embeddings in Cohere's format, version 1.", (CohereEmbedRequest,),
        (CohereEmbedResponse, CohereFloatsResponse), failures=_REQUEST,
    ),
    _Operation(
        "post", "/pooling", "Returns a pooling model's output for each input, or for each of its tokens.",
        (PoolingRequest,),
        (PoolingResponse,), failures=_REQUEST,
    ),
    _Operation(
        "post", "/classify", "Classifies each input.", (ClassifyRequest,), (ClassifyResponse,),
        failures=_REQUEST,
    ),
    *(
        _Operation("post", path, "Scores how well texts match.", (ScoreRequest,), (ScoreResponse,), failures=_REQUEST)
        for path in ("/score", "/v1/score")
    ),
    *(
        _Operation(
            "post", path, "Ranks documents by how well they answer a query.", (RerankRequest,),
            (RerankResponse,), failures=_REQUEST,
        )
        for path in ("/rerank", "/v1/rerank", "/v2/rerank")
    ),
    _Operation(
        "post", "/generative_scoring", "Scores how likely a model is to continue with each label.",
        (GenerativeScoringRequest,),
        (ScoreResponse,), failures=_REQUEST,
    ),
    _Operation(
        "get", "/v1/responses/{response_id}/input_items", "Lists the input items of a stored response.",
        answers=(InputItems,),
        failures=(400, 404, 503), queries=(
            ("limit", {"type": "integer", "minimum": 1, "maximum": 100}), ("order", {"enum": ["asc", "desc"]}),
            ("after", {"type": "string"}),
        ),
    ),
    _Operation(
        "post", "/invocations", "Acts as one of the endpoints above, depending on the model and the body's fields.",
        (
            ChatCompletionRequest, CompletionRequest, EmbeddingRequest, ClassifyRequest, PoolingRequest, ScoreRequest,
            RerankRequest,
        ),
        (
            ChatCompletion, Completion, EmbeddingResponse, ClassifyResponse, PoolingResponse, ScoreResponse,
            RerankResponse,
        ),
        (ChatCompletionChunk, Completion), failures=_REQUEST,
    ),
    _Operation(
        "post", "/inference/v1/generate", "Generates from token ids.", (GenerateRequest,), (GenerateResponse,),
        (GenerateChunk,), failures=_SCALE_OUT,
    ),
    _Operation(
        "post", "/inference/v1/abort_requests", "Ends requests.", (AbortRequests,), (dict[str, str],),
        failures=_SCALE_OUT,
    ),
    _Operation(
        "post", "/v1/chat/completions/render", "Renders a conversation to token ids, for /inference/v1/generate.",
        (ChatCompletionRequest,), (RenderedRequest,), failures=_SCALE_OUT,
    ),
    _Operation(
        "post", "/v1/completions/render", "Renders prompts to token ids, each for /inference/v1/generate.",
        (CompletionRequest,), (list[RenderedRequest],), failures=_SCALE_OUT,
    ),
    _Operation(
        "post", "/v1/messages/render", "Renders a conversation in Anthropic's format to token ids.", (MessagesRequest,),
        (RenderedRequest,), failures=(*_SCALE_OUT, 529), failure=MessagesError,
    ),
    _Operation(
        "post", "/cohere/v2/chat/render", "Renders a conversation in Cohere's format to token ids.",
        (CohereChatRequest,), (RenderedRequest,), failures=_SCALE_OUT, failure=CohereError,
    ),
    _Operation(
        "post", "/v1/responses/render", "Renders a turn of a conversation to token ids.",
        (ResponsesRequest,), (RenderedRequest,),
        failures=_SCALE_OUT,
    ),
    _Operation(
        "post", "/v1/chat/completions/derender", "Converts token ids to a chat completion, or to a chunk of one.",
        (DerenderChatRequest,), (ChatCompletion, DerenderChatStreamResponse), failures=_SCALE_OUT,
    ),
    _Operation(
        "post", "/v1/completions/derender", "Converts token ids to a completion, or to a chunk of one.",
        (DerenderCompletionRequest,), (Completion, DerenderCompletionStreamResponse), failures=_SCALE_OUT,
    ),
    _Operation(
        "get", "/v1/realtime", "A WebSocket on which audio is sent, and its transcript received (docs/media.md).",
        failures=(426, 503),
    ),
    _Operation("get", "/v1/models", "Lists the served models.", answers=(ModelList,)),
    _Operation("get", "/v1/models/{model}", "Returns one of the served models.", answers=(ModelCard,), failures=(404,)),
    _Operation(
        "post", "/tokenize", "Turns text or a conversation into token ids.", (TokenizeRequest,), (TokenizeResponse,),
        failures=_REQUEST,
    ),
    _Operation(
        "post", "/detokenize", "Turns token ids into text.", (DetokenizeRequest,), (DetokenizeResponse,),
        failures=_REQUEST,
    ),
    _Operation("get", "/health", "Answers 200 while requests can be served.", failures=(503,)),
    _Operation("get", "/ping", "As /health.", failures=(503,)),
    _Operation("post", "/ping", "As /health.", failures=(503,)),
    _Operation("get", "/livez", "Answers 200 while the process runs."),
    _Operation("get", "/readyz", "As /health.", failures=(503,)),
    _Operation("get", "/version", "Quire's version.", answers=(dict[str, str],)),
    _Operation("get", "/load", "Number of requests in progress in this gateway.", answers=(dict[str, int],)),
    _Operation(
        "get", "/kv_event_sources", "Where workers publish the events of their prefix caches.",
        answers=(dict[str, KvEventSource],),
    ),
    _Operation("get", "/fleet", "The workers behind the server.", answers=(FleetView,)),
    _Operation("get", "/metrics", "Prometheus metrics.", answers=(str,), media_type="text/plain"),
)  # fmt: skip
_FAILURES = {
    400: "The request is wrong; the error names the field and the fix.",
    401: "The API key is missing or not known.",
    403: "The server was started without --enable-scale-out.",
    404: "There is no such model, or no such response.",
    413: "The body is larger than --max-body-bytes, or the file of a form larger than 25 MiB.",
    415: "The body is compressed.",
    426: "The request asks for no WebSocket.",
    429: "A limit of the API key is reached (--api-key-file): try again after Retry-After.",
    500: "An internal error; the log has the details.",
    503: "The server is not ready, too busy, or stopping: try again later.",
    504: "The request did not finish within its time limit.",
    529: "The server is too busy: try again later.",
}
_Schemas = Mapping[Any, dict[str, Any]]
_PARAMETER = re.compile(r"\{(\w+)\}")
_CSP = "default-src 'none'; connect-src 'self'; script-src 'self'; style-src 'self'; base-uri 'none'"
_TYPES = {"docs.html": "text/html", "docs.js": "text/javascript", "docs.css": "text/css"}


@functools.cache
def _document(needs_key: bool, public: frozenset[bytes]) -> dict[str, Any]:
    kinds = [kind for each in _OPERATIONS for kind in (*each.requests, *each.answers, *each.chunks)]
    schemas, components = msgspec.json.schema_components([*kinds, *_ERRORS], ref_template="#/components/schemas/{name}")
    for name in {kind.__name__ for each in _OPERATIONS for kind in each.requests}:
        add_limits(components[name]["properties"])
    schema_of = dict(zip([*kinds, *_ERRORS], schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for each in _OPERATIONS:
        is_locked = needs_key and each.path.encode() not in public
        paths.setdefault(each.path, {})[each.method] = _described(each, schema_of, is_locked)
    security = {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}} if needs_key else {}
    return {
        "openapi": "3.1.0", "info": {"title": "Quire", "version": quire.__version__}, "paths": paths,
        "components": {"schemas": components, **security},
    }  # fmt: skip


def _described(operation: _Operation, schema_of: _Schemas, needs_key: bool) -> dict[str, Any]:
    of_keys = () if not needs_key else (401, 429) if operation.method == "post" else (401,)
    failures = sorted({*operation.failures, *of_keys, 500})
    failure = {"application/json": {"schema": schema_of[operation.failure]}}
    responses = {str(status): {"description": _FAILURES[status], "content": failure} for status in failures}
    described: dict[str, Any] = {
        "summary": operation.text, "responses": {"200": _success(operation, schema_of), **responses},
    }  # fmt: skip
    if needs_key:
        described["security"] = [{"key": []}]
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _PARAMETER.findall(operation.path)
    ]
    parameters += [{"name": name, "in": "query", "schema": schema} for name, schema in operation.queries]
    if parameters:
        described["parameters"] = parameters
    if operation.requests:
        content = {operation.request_type: {"schema": _any_of(operation.requests, schema_of)}}
        described["requestBody"] = {"required": True, "content": content}
    return described


def _success(operation: _Operation, schema_of: _Schemas) -> dict[str, Any]:
    content = {}
    if operation.answers:
        content[operation.media_type] = {"schema": _any_of(operation.answers, schema_of)}
    content |= {media_type: {"schema": {"type": "string"}} for media_type in operation.plain}
    if operation.chunks:
        held = _any_of((*operation.chunks, operation.failure), schema_of)
        content["text/event-stream"] = {"schema": _event(held, ends_with_done=operation.ends_with_done)}
    return {"description": "Success.", **({"content": content} if content else {})}


def _event(data: dict[str, Any], *, ends_with_done: bool) -> dict[str, Any]:
    """Schema of one event of a stream, including the final `[DONE]` if it has one."""
    in_json = {"type": "string", "contentMediaType": "application/json", "contentSchema": data}
    return {
        "type": "object", "description": "With stream: true, one of the events.", "required": ["data"],
        "properties": {"data": {"anyOf": [{"const": "[DONE]"}, in_json]} if ends_with_done else in_json},
    }  # fmt: skip


def _any_of(kinds: Sequence[Any], schema_of: _Schemas) -> dict[str, Any]:
    schemas = [schema_of[kind] for kind in kinds]
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


async def openapi_json(request: Request) -> Response:
    """Serves the OpenAPI document."""
    options = context_of(request).options
    return json_response(_document(options.needs_key, public_paths(options.metrics_without_key)))


async def docs(request: Request) -> Response:
    """Serves the page that shows the document and sends requests, and its assets; nothing is loaded from elsewhere."""
    name = request.path_params.get("asset", "docs.html")
    if name not in _TYPES:
        raise HTTPException(404)
    content = (resources.files("gateway") / "static" / name).read_bytes()
    return Response(content, media_type=_TYPES[name], headers={"content-security-policy": _CSP})
