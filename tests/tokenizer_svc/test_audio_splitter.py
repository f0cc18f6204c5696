"""Long recordings become pieces that the model takes."""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import wave
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import pytest_asyncio

from quire.errors import InvalidRequest, Overloaded, QuireError
from quire.options.multimodal import ImageProcessorOptions
from quire.options.tokenizer import TokenizerOptions
from quire.rpc.status import from_rpc_error
from quire.v1 import tokenizer_pb2, tokenizer_pb2_grpc
from tests.support.audio_files import RATE, Samples, audio_file, sine, wav_file
from tests.support.audio_processors import CHUNK_SECONDS, save_audio_processor
from tests.support.folders import FolderOf, made_once
from tests.support.gateway_stack import RunningTokenizer, running_tokenizer, save_tokenizer
from tests.support.media_preparers import in_this_process
from tests.support.vision_models import make_vision_model
from tests.support.waiting import WAIT_SECONDS, eventually
from tokenizer_svc import audio_decoder, audio_splitter
from tokenizer_svc.audio_decoder import decode_audio, decode_long_audio
from tokenizer_svc.audio_splitter import AudioPiece, AudioSplitter
from tokenizer_svc.child import Message
from tokenizer_svc.child_pool import ChildEnded, ChildTooSlow
from tokenizer_svc.media import MediaPreparer
from tokenizer_svc.media_rejection import MediaRejection

pytestmark = pytest.mark.asyncio(loop_scope="module")

MOST = CHUNK_SECONDS  # seconds of a piece


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> FolderOf:
    return made_once(tmp_path_factory, save_audio_processor)


@dataclass
class Service:
    """A tokenizer service of a model that takes recordings of MOST seconds."""

    stub: tokenizer_pb2_grpc.TokenizerServiceStub
    running: RunningTokenizer

    @property
    def splitter(self) -> AudioSplitter:
        return self.running.servicer._media._splitter

    async def split(self, file: bytes, seconds: float = WAIT_SECONDS) -> list[tokenizer_pb2.SplitAudioResponse]:
        try:
            call = self.stub.SplitAudio(tokenizer_pb2.SplitAudioRequest(file=file), timeout=seconds)
            return [piece async for piece in call]
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from None

    async def refusal(self, file: bytes) -> QuireError:
        with pytest.raises(InvalidRequest) as caught:
            await self.split(file)
        assert caught.value.parameter == "file"
        return caught.value

    async def render(self, file: bytes) -> tokenizer_pb2.RenderChatResponse:
        messages = json.dumps([{"role": "user", "content": [{"type": "audio"}]}]).encode()
        request = tokenizer_pb2.RenderChatRequest(messages_json=messages, audios=[file])
        return await self.stub.RenderChat(request, timeout=WAIT_SECONDS)  # type: ignore[no-any-return]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(folder_of: FolderOf) -> AsyncIterator[Service]:
    async with (
        running_tokenizer(folder_of("whisper"), tokenizer_options=TokenizerOptions()) as running,
        grpc.aio.insecure_channel(f"127.0.0.1:{running.port}") as channel,
    ):
        yield Service(tokenizer_pb2_grpc.TokenizerServiceStub(channel), running)


def samples_of(file: bytes) -> Samples:
    """Those of a WAV file in the form that the service writes."""
    with wave.open(io.BytesIO(file)) as opened:
        assert (opened.getnchannels(), opened.getsampwidth(), opened.getframerate()) == (1, 2, RATE)
        return (np.frombuffer(opened.readframes(opened.getnframes()), np.int16) / 2**15).astype(np.float32)


def talk(seconds: float, *silences: float) -> Samples:
    """A tone that is silent for a fifth of a second around some times."""
    found = sine(seconds)
    for middle in silences:
        found[int((middle - 0.1) * RATE) : int((middle + 0.1) * RATE)] = 0
    return found


async def test_a_recording_that_fits_is_not_sent_back(service: Service) -> None:
    for seconds in (0.01, 1.5, MOST):
        (piece,) = await service.split(audio_file(sine(seconds), "flac"))
        assert (piece.start_seconds, piece.file) == (0, b"")
        assert piece.seconds == pytest.approx(seconds)
    padded = audio_file(sine(MOST + 0.05))  # as some codecs do, whose filling RenderChat cuts off
    (piece,) = await service.split(padded)
    assert piece.file == b""
    assert (await service.render(padded)).audio_seconds == MOST


@pytest.mark.parametrize(("kind", "rate"), [("wav", RATE), ("wavf", RATE), ("flac", 48_000), ("mp3", 44_100)])
async def test_pieces_joined_are_the_recording(service: Service, kind: str, rate: int) -> None:
    file = audio_file(np.stack([sine(9.3, rate=rate), sine(9.3, 700.0, rate)]), kind, rate)
    pieces = await service.split(file)
    assert len(pieces) > 4
    assert all(0 < piece.seconds <= MOST for piece in pieces)
    starts = [0.0, *itertools.accumulate(piece.seconds for piece in pieces)]
    assert [piece.start_seconds for piece in pieces] == pytest.approx(starts[:-1])
    joined, whole = np.concatenate([samples_of(piece.file) for piece in pieces]), decode_audio(file, RATE, 60)
    assert len(joined) == len(whole)
    assert np.abs(joined - whole).max() <= 2**-16


async def test_cuts_are_in_silences(service: Service) -> None:
    pieces = await service.split(audio_file(talk(5.3, 1.7, 3.4), "wavf"))
    assert [piece.start_seconds for piece in pieces] == pytest.approx([0, 1.7, 3.4], abs=0.051)
    rendered = await service.render(pieces[1].file)
    assert rendered.audio_seconds == pytest.approx(pieces[1].seconds, abs=1e-4)
    assert rendered.images[0].num_tokens == 128


async def test_loud_samples_are_clipped(service: Service) -> None:
    loud = np.tile(np.array([3.0, -3.0], np.float32), 3 * RATE)
    found = np.concatenate([samples_of(piece.file) for piece in await service.split(audio_file(loud, "wavf"))])
    assert set(found.tolist()) == {1 - 2**-15, -1.0}


@pytest.mark.parametrize(
    ("file", "words"),
    [
        (b"", "The audio is empty. Send the file's content."),
        (b"no audio", "The audio is not in a known format"),
        (wav_file(b""), "The audio cannot be decoded (it has no samples)"),
    ],
)
async def test_what_is_refused(service: Service, file: bytes, words: str) -> None:
    assert words in (await service.refusal(file)).message


async def test_the_longest(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audio_splitter, "MAX_SECONDS", 5.0)
    assert len(await service.split(audio_file(sine(5.0)))) >= 3
    error = await service.refusal(audio_file(sine(5.2)))
    assert error.message == (
        "The audio is longer than 5 s, the most that this server cuts into pieces. Send a shorter one, or several "
        "parts."
    )


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (ChildTooSlow, "The audio takes longer than 60 s to cut into pieces. Send a shorter one."),
        (ChildEnded, "The audio takes too much memory. Send a shorter one."),
    ],
)
async def test_a_recording_that_takes_too_much(
    service: Service, failure: type[Exception], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(message: Any) -> Any:
        raise failure

    monkeypatch.setattr(service.splitter._pool, "ask", fail)
    assert (await service.refusal(b"any")).message == words


@pytest.mark.slow
async def test_two_hours_fit_in_the_process(service: Service) -> None:
    """Again and again, although what it has answered was large."""
    minute = 0.1 * sine(60.0, rate=4000)  # so quiet that a message has room for it
    file = audio_file(np.tile(minute, 120), "alac", 4000)  # with frames of a second, which take the least time
    for _ in range(2):
        async with service.splitter.split(file) as pieces:
            assert sum(piece.seconds for piece in pieces) == pytest.approx(7200)


async def test_a_limit_of_hours_is_told_in_hours(monkeypatch: pytest.MonkeyPatch) -> None:
    def decoded(file: bytes, rate: int, most_seconds: float, most: str) -> Iterator[Samples]:
        raise MediaRejection(most)

    monkeypatch.setattr(audio_decoder, "_decoded", decoded)
    with pytest.raises(MediaRejection, match=r"^2 hours, the most that this server cuts into pieces$"):
        decode_long_audio(b"any", RATE, audio_splitter.MAX_SECONDS)


async def test_those_that_wait(folder_of: FolderOf, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only two have their samples in memory; the others wait until they are sent, or they have no time left."""
    monkeypatch.setattr(audio_splitter, "_MAX_WAITING", 2)
    splitter, sent = AudioSplitter(Message()), asyncio.Event()

    async def answer(message: Message) -> Message:
        return Message({"rate": RATE, "ends": [RATE]})

    monkeypatch.setattr(splitter._pool, "ask", answer)
    begun: list[int] = []

    async def split(name: int) -> AudioPiece:
        async with splitter.split(b"any") as pieces:
            begun.append(name)
            await sent.wait()
            return next(pieces)

    tasks = [asyncio.create_task(split(name)) for name in range(4)]
    await eventually(lambda: splitter._waiting == 2, "they do not wait")
    assert begun == [0, 1]
    with pytest.raises(Overloaded, match="Too many recordings to cut into pieces are already waiting"):
        await split(4)
    tasks[2].cancel()
    await asyncio.gather(tasks[2], return_exceptions=True)
    sent.set()
    assert await asyncio.gather(tasks[0], tasks[1], tasks[3]) == [AudioPiece(0.0, 1.0, b"")] * 3
    assert begun == [0, 1, 3]
    assert splitter._waiting == 0


async def test_a_caller_that_gives_up_leaves_its_turn(service: Service) -> None:
    long = audio_file(sine(400.0, rate=4000), "flac", 4000)
    for _ in range(3):
        call = service.stub.SplitAudio(tokenizer_pb2.SplitAudioRequest(file=long), timeout=WAIT_SECONDS)
        assert (await call.read()).file
        call.cancel()
    assert len(await service.split(audio_file(sine(3.0)))) == 2


async def test_models_without_audio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    preparer = MediaPreparer(make_vision_model(tmp_path / "llava", "llava"), ImageProcessorOptions())
    await in_this_process(preparer, monkeypatch).start()
    with pytest.raises(InvalidRequest, match="This model reads no audio") as caught:
        preparer.split(b"any")
    assert caught.value.parameter == "file"
    save_tokenizer(tmp_path)
    async with (
        running_tokenizer(tmp_path) as running,
        grpc.aio.insecure_channel(f"127.0.0.1:{running.port}") as channel,
    ):
        service = Service(tokenizer_pb2_grpc.TokenizerServiceStub(channel), running)
        error = await service.refusal(audio_file(sine(1.0)))
        assert "This model reads text only: it comes without a processor" in error.message
