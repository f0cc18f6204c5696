"""A worker that encodes for others, over a real socket: the one that generates gets the tokens that it gets alone."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import torch

from engine_svc.executor.base import create_executor
from engine_svc.media.base import EncodedImage
from engine_svc.media.packing import pack, unpack
from engine_svc.plan import EncodedRows
from engine_svc.requests.request import GenerationRequest
from engine_svc.service.encoding import EmbeddingPuller
from quire.images import Image, ImageInput
from quire.options.model import ModelOptions
from quire.options.parallel import ParallelOptions
from quire.options.server import RpcSecurityOptions
from quire.rpc.images import from_images, to_images
from quire.v1 import common_pb2, engine_pb2, engine_pb2_grpc
from tests.support.audio_files import sine
from tests.support.audio_models import audio_request, make_audio_model
from tests.support.engine_client import TIMEOUT
from tests.support.engine_server import RunningEngine, running_engine
from tests.support.run_engine import GREEDY
from tests.support.vision_models import make_vision_model, random_image
from tests.support.vision_models.conversations import ask

CONSUMER = {"ec_connector": "GrpcConnector", "ec_role": "ec_consumer"}


@contextlib.asynccontextmanager
async def worker(folder: Path, **options: Any) -> AsyncIterator[RunningEngine]:
    executor = create_executor(ParallelOptions())
    given = {"dtype": "float32", "num_gpu_blocks_override": 64, "use_tqdm_on_load": False, "device": "cpu"} | options
    async with running_engine(executor, ModelOptions(model=str(folder)), **given) as found:
        yield found


def images_of(request: GenerationRequest, encoder: str) -> list[common_pb2.Image]:
    messages = from_images(request.images)
    for message in messages:
        message.encoder = encoder
    return messages


async def tokens(engine: RunningEngine, request: GenerationRequest, encoder: str = "", salt: str = "") -> list[int]:
    """The tokens that a worker answers with, which has not seen the prompt with this salt before."""
    sampling = common_pb2.SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
    generation = common_pb2.Generation(
        prompt_token_ids=request.prompt_token_ids, sampling=sampling, images=images_of(request, encoder),
        cache_salt=salt,
    )  # fmt: skip
    call = engine.stub.Generate(engine_pb2.EngineServiceGenerateRequest(generation=generation), timeout=TIMEOUT)
    return [token async for answer in call for token in answer.delta.token_ids]


def counts(engine: RunningEngine) -> tuple[int, int, int]:
    """Images that a worker has encoded, pulled, and asked for in vain."""
    counters = engine.worker.load_now().counters
    return counters.encoded_media, counters.pulled_media, counters.failed_media_pulls


def vision_request(folder: Path) -> GenerationRequest:
    image, other = random_image(60, 40, 1), random_image(30, 70, 2)
    return ask(make_vision_model(folder, "qwen3_vl"), "See ", image, " and ", other)


def hearing_request(folder: Path) -> GenerationRequest:
    messages = [{"role": "user", "content": [{"type": "text", "text": "Hear "}, {"type": "audio"}]}]
    return audio_request(make_audio_model(folder, "glmasr"), messages, [sine(1.3)], GREEDY)


async def check_refusals(encoder: RunningEngine, request: GenerationRequest) -> None:
    """What an encoder does not do; it goes on with the rest."""
    image, fingerprint = images_of(request, "")[0], encoder.worker.info.encoder_fingerprint
    broken = common_pb2.Image()
    broken.CopyFrom(image)
    broken.inputs[0].data = b""
    for asked, own, why in (
        (image, "another", "it encodes differently"), (broken, fingerprint, "do not match the type"),
        (common_pb2.Image(num_tokens=1), fingerprint, "failed"),
    ):  # fmt: skip
        wanted = engine_pb2.EncodeMediaRequest(encoder_fingerprint=own, image=asked)
        with pytest.raises(grpc.aio.AioRpcError, match=why):
            await encoder.stub.EncodeMedia(wanted, timeout=TIMEOUT).read()
    with pytest.raises(grpc.aio.AioRpcError, match="only encodes images, videos and audio for others"):
        await tokens(encoder, request)


@pytest.mark.slow
@pytest.mark.parametrize("make", [vision_request, hearing_request])
async def test_tokens_are_those_of_a_worker_alone(make: Any, tmp_path: Path) -> None:
    """Also without the encoder, once it refuses or is gone. What it keeps, it does not encode again."""
    folder = tmp_path / "model"
    request = make(folder)
    count = len(request.images)
    async with worker(folder) as alone:
        expected = await tokens(alone, request)
        assert counts(alone) == (count, 0, 0)
    async with worker(folder, ec_transfer_config=CONSUMER) as engine:
        assert engine.worker.info.ec_role == "ec_consumer"
        async with worker(folder, mm_encoder_only=True) as encoder:
            assert encoder.worker.info.encoder_fingerprint == engine.worker.info.encoder_fingerprint
            assert encoder.worker.load_now().total_kv_blocks == 0
            assert await tokens(engine, request, encoder.address) == expected
            assert (counts(engine), counts(encoder)) == ((0, count, 0), (count, 0, 0))
            await engine.worker.administration.reset_encoder_cache()
            assert await tokens(engine, request, encoder.address, "anew") == expected
            assert (counts(engine), counts(encoder)) == ((0, 2 * count, 0), (count, 0, 0))
            await check_refusals(encoder, request)
        await engine.worker.administration.reset_encoder_cache()
        assert await tokens(engine, request, encoder.address, "once more") == expected
        assert counts(engine) == (count, 2 * count, count)


def message(data: bytes = b"", **form: Any) -> engine_pb2.EncodeMediaResponse:
    return engine_pb2.EncodeMediaResponse(form=engine_pb2.EncodedMedia(**form) if form else None, data=data)


FORM = {"dtype": "bfloat16", "num_rows": 2, "hidden_size": 3, "num_deep": 1}
IMAGE = Image(7, 2, (ImageInput("pixel_values", "uint8", (1,), b"x"),))


class _Answering(engine_pb2_grpc.EngineServiceServicer):
    """Sends what it is told to, then ends the call like this."""

    def __init__(self, *messages: engine_pb2.EncodeMediaResponse, code: grpc.StatusCode = grpc.StatusCode.OK) -> None:
        self.messages, self.code = messages, code
        self.received: list[engine_pb2.EncodeMediaRequest] = []

    async def EncodeMedia(
        self, request: engine_pb2.EncodeMediaRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[engine_pb2.EncodeMediaResponse]:
        self.received.append(request)
        for each in self.messages:
            yield each
        if self.code is not grpc.StatusCode.OK:
            await context.abort(self.code, "gone")


async def pulled_from(servicer: _Answering) -> EncodedRows | None:
    server = grpc.aio.server()
    engine_pb2_grpc.add_EngineServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    puller = EmbeddingPuller(RpcSecurityOptions())
    try:
        return await asyncio.wrap_future(puller.pull(replace(IMAGE, encoder=f"127.0.0.1:{port}"), "alike"))
    finally:
        await server.stop(0)


async def test_embeddings_come_in_parts() -> None:
    servicer = _Answering(message(bytes(range(20)), **FORM, kept=[0, 2], both_ways=True), message(bytes(4)))
    rows = EncodedRows("bfloat16", 2, 3, 1, [0, 2], True, bytes(range(20)) + bytes(4))
    assert await pulled_from(servicer) == rows
    (request,) = servicer.received
    assert request.encoder_fingerprint == "alike"
    assert to_images([request.image])[0].digest == IMAGE.digest


@pytest.mark.parametrize(
    ("servicer", "why"),
    [
        (_Answering(), "0 bytes that it has announced"),
        (_Answering(message(bytes(20), **FORM)), "24 bytes that it has announced"),
        (_Answering(message(bytes(25), **FORM)), "24 bytes that it has announced"),
        (_Answering(message(bytes(24), **FORM | {"num_rows": 3})), "3 rows of 3 values"),
        (_Answering(message(bytes(24), **FORM | {"dtype": "object"})), "values in 'object'"),
        (_Answering(message(bytes(20), **FORM), code=grpc.StatusCode.UNAVAILABLE), "gone"),
    ],
)
async def test_what_is_no_embedding_is_not_taken(
    servicer: _Answering, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert await pulled_from(servicer) is None
    assert why in caplog.text


async def test_a_worker_that_is_gone_is_noticed() -> None:
    puller = EmbeddingPuller(RpcSecurityOptions())
    assert await asyncio.wrap_future(puller.pull(replace(IMAGE, encoder="127.0.0.1:1"), "alike")) is None


async def test_only_encoders_are_asked() -> None:
    async with running_engine() as engine:
        with pytest.raises(grpc.aio.AioRpcError, match="start one with --mm-encoder-only"):
            await engine.stub.EncodeMedia(engine_pb2.EncodeMediaRequest(), timeout=TIMEOUT).read()


@pytest.mark.parametrize("deep", [None, torch.randn(3, 2, 4).to(torch.bfloat16)])
def test_embeddings_survive_the_wire(deep: torch.Tensor | None) -> None:
    given = EncodedImage(torch.randn(3, 4).to(torch.bfloat16), deep, np.array([0, 2, 5]), both_ways=False)
    found = unpack(pack(given), torch.device("cpu"))
    assert torch.equal(found.embeddings, given.embeddings)
    assert found.deep is None if deep is None else torch.equal(found.deep, deep)
    assert (found.kept.tolist(), found.both_ways) == ([0, 2, 5], False)
    assert unpack(pack(EncodedImage(given.embeddings, deep)), torch.device("cpu")).kept is None
