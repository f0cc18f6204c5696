"""`/tokenize`, `/detokenize`, `/tokenizer_info` and `/v1/models`."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from gateway.context import GatewayContext, context_of
from gateway.endpoints import large
from gateway.endpoints.body import read_json
from gateway.endpoints.large import beside
from gateway.errors import json_response
from gateway.media.settings import check_media_settings, check_no_media_settings
from gateway.protocol.tokens import (
    DetokenizeRequest,
    DetokenizeResponse,
    ModelCapabilities,
    ModelCard,
    ModelList,
    TokenizeRequest,
    TokenizeResponse,
)
from gateway.requests.generation_request import TokenizedPrompt
from gateway.requests.messages import template_messages
from gateway.requests.served_model import ServedModel
from gateway.requests.template_variables import template_variables
from gateway.requests.tools import template_tools
from quire.bounds import check_token_ids
from quire.errors import InvalidRequest
from quire.runners import GENERATE


async def list_models(request: Request) -> Response:
    """Lists the models that workers serve, or served recently."""
    context = context_of(request)
    return json_response(ModelList([_card(context, name, model) for name, model in context.fleet.models.items()]))


async def get_model(request: Request) -> Response:
    """Returns one model; its id may contain slashes."""
    context, name = context_of(request), request.path_params["model"]
    if not name:
        raise HTTPException(404)
    return json_response(_card(context, name, context.fleet.model(name)))


def _card(context: GatewayContext, name: str, model: ServedModel) -> ModelCard:
    generates = model.runner == GENERATE
    capabilities = ModelCapabilities(
        completion_chat=generates, function_calling=generates and context.tool_parser is not None,
        vision=model.accepts_images, audio=model.accepts_audio,
    )  # fmt: skip
    length = model.max_model_len
    return ModelCard(name, length, context.start_time, model.model, capabilities, length, parent=model.parent)


async def tokenize(request: Request) -> Response:
    """Tokenizes a text or a conversation."""
    context = context_of(request)
    context.require_tokenizer("Tokenizing text")
    body = await read_json(request, TokenizeRequest)
    model = context.fleet.model(body.model)
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequest("Send either prompt or messages.", parameter="prompt")
    sequence = await sequence_of(request, body, context)
    strings: Mapping[int, str] | None = None
    if body.return_token_strs:
        strings = await context.tokenizer.token_strings(await beside(request, set, sequence.token_ids))

    def make() -> TokenizeResponse:
        token_ids = list(sequence.token_ids)
        spelled = [strings[token_id] for token_id in token_ids] if strings is not None else None
        return TokenizeResponse(len(token_ids), model.max_model_len, token_ids, spelled)

    return await large.answer(request, len(sequence.token_ids), make)


async def sequence_of(request: Request, body: TokenizeRequest, context: GatewayContext) -> TokenizedPrompt:
    """Returns the tokens of the text or conversation."""
    if body.messages is None:
        check_no_media_settings(body)
        special = body.add_special_tokens is not False
        return (await context.tokenizer.encode([body.prompt or ""], special))[0]
    check_media_settings(body, are_trusted=context.options.media.trust_request_mm_kwargs)
    converted = await beside(request, template_messages, body.messages)
    rendered = await context.tokenizer.render_chat(
        converted.json,
        media=await context.media.read(converted.media, context.fleet.model(body.model).media),
        processor_settings=body.mm_processor_kwargs,
        reading_settings=body.media_io_kwargs,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        add_special_tokens=bool(body.add_special_tokens),
        template=body.chat_template,
        kwargs=template_variables(
            body.chat_template_kwargs,
            body.reasoning_effort,
            context.options.reasoning.reasoning_effort,
            defaults=context.options.default_chat_template_kwargs,
        ),
        default_effort=context.options.reasoning.default_effort,
        tools_json=await beside(request, template_tools, body.tools),
    )
    return rendered.prompt


async def detokenize(request: Request) -> Response:
    """Converts token ids to text."""
    context = context_of(request)
    context.require_tokenizer("Detokenizing token ids")
    body = await read_json(request, DetokenizeRequest)
    model = context.fleet.model(body.model)
    await beside(request, check_token_ids, "tokens", body.tokens, model.vocab_size)
    text = await context.tokenizer.decode(body.tokens)
    return await large.answer(request, len(body.tokens), lambda: DetokenizeResponse(text))


async def tokenizer_info(request: Request) -> Response:
    """Returns the tokenizer's configuration, if the server is set to show it."""
    return json_response(msgspec.json.decode(await context_of(request).tokenizer.config_json()))
