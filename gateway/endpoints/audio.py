"""`POST /v1/audio/transcriptions` and `/v1/audio/translations`: speech to text, built on chat generation."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from gateway.answers.stream import EventStream
from gateway.context import GatewayContext, context_of
from gateway.endpoints import chat
from gateway.endpoints.form import form_bytes, read_form
from gateway.endpoints.transcription_answer import TranscriptionAnswer
from gateway.errors import HttpError
from gateway.media.conversations import NO_UPLOADS
from gateway.protocol.transcription import TranscriptionRequest, TranslationRequest
from gateway.requests.caller import tenant_of
from gateway.requests.field_names import told_as
from gateway.requests.generation_request import GenerationRequest
from gateway.requests.speech_formats import FILE_URL
from gateway.requests.transcription import transcribing, transcription_of
from quire.media import MAX_FILE_BYTES, MediaKind
from quire.runners import GENERATE


async def transcriptions(request: Request) -> Response | EventStream:
    """Writes down what is said in a recording."""
    return await _respond(request, TranscriptionRequest)


async def translations(request: Request) -> Response | EventStream:
    """Writes down what is said in a recording, in another language."""
    return await _respond(request, TranslationRequest)


async def _respond(request: Request, kind: type[TranscriptionRequest]) -> Response | EventStream:
    context = context_of(request)
    context.require_tokenizer("A transcription", "file")
    with context.uploads.held(tenant_of(request), form_bytes(request)):
        body, generation = await _asked(request, context, kind)
    return await TranscriptionAnswer(context, body, await context.pipeline.start(generation)).respond(request)


async def _asked(
    request: Request, context: GatewayContext, kind: type[TranscriptionRequest]
) -> tuple[TranscriptionRequest, GenerationRequest]:
    """Returns the form, without the recording, and the generation request that it becomes."""
    body = transcription_of(await read_form(request), kind)
    _check_size(body.file)
    asked = transcribing(body, context.fleet.model(body.model, GENERATE))
    uploads = NO_UPLOADS if body.file_url else {FILE_URL: body.file}
    with told_as(asked.told_as):
        generation = await chat.prepare(
            request, asked.chat, [asked.chat.messages], uploads=uploads, parsers=asked.parsers
        )
    # Text may be written for minutes; the file has served.
    return msgspec.structs.replace(body, file=b"", file_url=None), generation


def _check_size(file: bytes) -> None:
    """
    Raises:
        HttpError: the recording is too large.
    """
    most = MAX_FILE_BYTES[MediaKind.AUDIO]
    if len(file) > most:
        raise HttpError(
            413,
            f"Maximum file size exceeded: file has {len(file)} bytes; at most {most // 2**20} MiB are allowed. Send a "
            "shorter or a compressed recording.",
        )
