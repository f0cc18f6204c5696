"""Embeddings of media on their way from the worker that encodes to the one that generates."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from concurrent.futures import Future

import grpc

from engine_svc.plan import EncodedRows
from engine_svc.requests.encoding import encoding_request
from engine_svc.service.answer import OnlyDelta
from engine_svc.worker import EngineWorker
from quire.errors import FailedPrecondition
from quire.images import Image
from quire.options.ec_transfer import CONSUMER
from quire.options.engine import EngineOptions
from quire.options.multimodal import ENCODER_FLAG
from quire.options.server import RpcSecurityOptions
from quire.rpc.channel import call_metadata, open_channel
from quire.rpc.images import from_images, to_images
from quire.runners import ENCODE
from quire.v1 import engine_pb2, engine_pb2_grpc

logger = logging.getLogger(__name__)

_PART_BYTES = 2**20
_VALUE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
# A worker that generates waits so long for an image, and so long for each of its tokens, before it encodes it itself.
_WAIT_SECONDS = 10.0
_WAIT_SECONDS_A_TOKEN = 0.02


async def encoded_media(
    worker: EngineWorker, request: engine_pb2.EncodeMediaRequest, request_id: str, remaining: float | None
) -> AsyncIterator[engine_pb2.EncodeMediaResponse]:
    """The messages of an EncodeMedia call; see engine.proto.

    Args:
        remaining: seconds until the call's deadline; None if it has none.

    Raises:
        FailedPrecondition, InvalidRequest, Overloaded, DeadlineExceeded, Internal: see engine.proto.
        Unavailable: the model is still loading, or the worker takes no requests.
    """
    if worker.info.runner != ENCODE:
        raise FailedPrecondition(f"This worker encodes nothing for others: start one with {ENCODER_FLAG}.")
    if request.encoder_fingerprint != worker.info.encoder_fingerprint:
        raise FailedPrecondition("The embeddings of this worker are of no use to the caller: it encodes differently.")
    (image,) = to_images([request.image])
    answer = OnlyDelta()
    key = worker.encode(encoding_request(image, request_id, remaining), answer)
    with worker.being_pulled():
        try:
            (rows,) = (await answer.result()).pooled
            assert isinstance(rows, EncodedRows)
        finally:
            worker.loop.detach(key)
        form = engine_pb2.EncodedMedia(
            dtype=rows.dtype, num_rows=rows.num_rows, hidden_size=rows.hidden_size, num_deep=rows.num_deep,
            kept=rows.kept, both_ways=rows.both_ways,
        )  # fmt: skip
        yield engine_pb2.EncodeMediaResponse(form=form, data=rows.data[:_PART_BYTES])
        for start in range(_PART_BYTES, len(rows.data), _PART_BYTES):
            yield engine_pb2.EncodeMediaResponse(data=rows.data[start : start + _PART_BYTES])


class EmbeddingPuller:
    """Has images encoded by the workers that they name; see MediaPuller."""

    def __init__(self, security: RpcSecurityOptions) -> None:
        """To be created in the event loop."""
        self._security = security
        self._event_loop = asyncio.get_running_loop()

    def pull(self, image: Image, fingerprint: str) -> Future[EncodedRows | None]:
        """See MediaPuller."""
        return asyncio.run_coroutine_threadsafe(self._pull(image, fingerprint), self._event_loop)

    async def _pull(self, image: Image, fingerprint: str) -> EncodedRows | None:
        (message,) = from_images([image])
        request = engine_pb2.EncodeMediaRequest(encoder_fingerprint=fingerprint, image=message)
        seconds = _WAIT_SECONDS + _WAIT_SECONDS_A_TOKEN * image.num_tokens
        try:
            # A connection for each image takes milliseconds, and none is left to a worker that is gone.
            async with open_channel(image.encoder, self._security) as channel:
                call = engine_pb2_grpc.EngineServiceStub(channel).EncodeMedia(
                    request, metadata=call_metadata(self._security), timeout=seconds
                )
                return await _received(call, max(image.num_tokens, image.num_frames))
        except grpc.aio.AioRpcError as error:
            why = error.details()
        except ValueError as error:
            why = str(error)
        logger.warning("encoder worker %s does not encode an image, so this one does: %s", image.encoder, why)
        return None


async def _received(messages: AsyncIterator[engine_pb2.EncodeMediaResponse], most_rows: int) -> EncodedRows:
    """
    Raises:
        ValueError: the worker sends something that no image has.
    """
    form, parts, size, missing = engine_pb2.EncodedMedia(), list[bytes](), 0, 0
    async for message in messages:
        if not parts:
            form = message.form
            size = _VALUE_BYTES.get(form.dtype, 0) * form.num_rows * form.hidden_size * (1 + form.num_deep)
            if not size or form.num_rows > most_rows:
                raise ValueError(f"it sends {form.num_rows} rows of {form.hidden_size} values in {form.dtype[:20]!r}")
            missing = size
        parts.append(message.data)
        missing -= len(message.data)
        if missing < 0:
            break
    if not parts or missing:
        raise ValueError(f"it does not send the {size} bytes that it has announced")
    return EncodedRows(
        form.dtype, form.num_rows, form.hidden_size, form.num_deep, list(form.kept), form.both_ways, b"".join(parts)
    )


def open_media_puller(options: EngineOptions, security: RpcSecurityOptions) -> EmbeddingPuller | None:
    """Returns what has images encoded by other workers; None if the options do not have it.

    Raises:
        StartupError: see ImageEncoderOptions.encoding.
    """
    return EmbeddingPuller(security) if options.images.encoding().ec_role == CONSUMER else None
