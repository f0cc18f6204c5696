"""`POST /v1/audio/transcriptions` and `/v1/audio/translations`: speech to text, built on chat generation."""

from __future__ import annotations

import contextlib

from starlette.requests import Request
from starlette.responses import Response

from gateway.answers.stream import EventStream
from gateway.context import GatewayContext, context_of
from gateway.endpoints.form import form_bytes, read_form
from gateway.endpoints.transcriber import Transcriber
from gateway.endpoints.transcription_answer import TranscriptionAnswer
from gateway.errors import HttpError
from gateway.media.conversations import NO_UPLOADS
from gateway.protocol.transcription import TranscriptionRequest, TranslationRequest
from gateway.requests.caller import tenant_of
from gateway.requests.chain import AnswerChain
from gateway.requests.field_names import told_as
from gateway.requests.messages import MediaUrl
from gateway.requests.speech_formats import FILE_URL
from gateway.requests.transcription import check_reads_audio, transcribing, transcription_of
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
    with contextlib.ExitStack() as held:
        held.enter_context(context.uploads.held(tenant_of(request), form_bytes(request)))
        transcriber, chain = await _begun(request, context, kind, held)
    return await TranscriptionAnswer(context, transcriber, chain).respond(request)


async def _begun(
    request: Request, context: GatewayContext, kind: type[TranscriptionRequest], held: contextlib.ExitStack
) -> tuple[Transcriber, AnswerChain]:
    """Returns the transcription that a form asks for, and its answers, of which the first has started.

    Args:
        held: see Transcriber.begin.
    """
    body = transcription_of(await read_form(request), kind)
    _check_size(body.file)
    model = context.fleet.model(body.model, GENERATE)
    check_reads_audio(model)
    asked = transcribing(body, await context.speech.of(model))
    with told_as(asked.told_as):
        recording = MediaUrl(body.file_url or FILE_URL, asked.task.place, MediaKind.AUDIO)
        uploads = NO_UPLOADS if body.file_url else {FILE_URL: body.file}
        (file,) = (await context.media.read([recording], model.media, uploads)).audios
    transcriber = Transcriber(request, asked)
    return transcriber, await transcriber.begin(file, held)


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
