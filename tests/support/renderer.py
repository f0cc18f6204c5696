"""Stands for the tokenizer service where gateways ask it about recordings, which the one in tests cannot read."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from gateway.services.tokenizers import Tokenizers
from quire.errors import QuireError
from quire.v1 import common_pb2, tokenizer_pb2
from tests.support.fake_engine import FakeEngine, Request

FIRST_TOKEN = 32  # of the first piece's prompt, to which the fake engine says AHO; BIP to the next one, and so on
SECONDS = 2.25
LOGPROB = -0.5
Piece = tuple[float, float, bytes]


@dataclass
class Renderer:
    """Renders conversations, and cuts recordings.

    Attributes:
        asked: the requests to render, with their time limits.
        error: what they fail with.
        files: recordings to cut.
        pieces: of recordings: start, length and file.
        cut_error: what follows the pieces.
        num_cut: pieces that have been taken.
        num_cutting: calls that go on.
        live: what was to be prepared of recordings that were still coming; each sample is what a token hears.
    """

    asked: list[tuple[tokenizer_pb2.RenderChatRequest, float | None]] = field(default_factory=list)
    error: QuireError | None = None
    files: list[bytes] = field(default_factory=list)
    pieces: Sequence[Piece] = ((0.0, SECONDS, b""),)
    cut_error: QuireError | None = None
    num_cut: int = 0
    num_cutting: int = 0
    live: list[tokenizer_pb2.PrepareLiveAudioRequest] = field(default_factory=list)

    @property
    def last(self) -> tokenizer_pb2.RenderChatRequest:
        return self.asked[-1][0]

    @property
    def messages(self) -> Any:
        return json.loads(self.last.messages_json)

    @property
    def texts(self) -> list[str]:
        """What each conversation says besides the recording."""
        contents = (json.loads(request.messages_json)[0]["content"] for request, _ in self.asked)
        return [part["text"] for content in contents for part in content if part["type"] == "text"]

    def cut_into(self, count: int, seconds: float = 10.0) -> None:
        """Makes recordings that many pieces."""
        self.pieces = [(number * seconds, seconds, b"%d" % number) for number in range(count)]

    def replace_in(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Takes the calls."""
        call = Tokenizers.call

        async def record(tokenizers: Tokenizers, method: str, request: Any, seconds: float | None = None) -> Any:
            if method == "PrepareLiveAudio":
                return self._prepared(request)
            return self._rendered(request, seconds) if method == "RenderChat" else await call(
                tokenizers, method, request, seconds
            )  # fmt: skip

        async def stream(
            tokenizers: Tokenizers, method: str, request: Any, seconds: float
        ) -> AsyncGenerator[tokenizer_pb2.SplitAudioResponse, None]:
            assert (method, seconds) == ("SplitAudio", 120)
            self.files.append(request.file)
            self.num_cutting += 1
            try:
                for start, length, file in self.pieces:
                    self.num_cut += 1
                    yield tokenizer_pb2.SplitAudioResponse(start_seconds=start, seconds=length, file=file)
                if self.cut_error:
                    raise self.cut_error
            finally:
                self.num_cutting -= 1

        monkeypatch.setattr(Tokenizers, "call", record)
        monkeypatch.setattr(Tokenizers, "stream", stream)

    def _rendered(
        self, request: tokenizer_pb2.RenderChatRequest, seconds: float | None
    ) -> tokenizer_pb2.RenderChatResponse:
        self.asked.append((request, seconds))
        if self.error:
            raise self.error
        files = [file for _, _, file in self.pieces]
        number = files.index(request.audios[0]) if request.audios[0] in files else 0
        sequence = tokenizer_pb2.TokenSequence(token_ids=[FIRST_TOKEN + number])
        return tokenizer_pb2.RenderChatResponse(
            text="A", sequence=sequence, audio_seconds=SECONDS, images=[common_pb2.Image(num_tokens=1)]
        )

    def _prepared(self, request: tokenizer_pb2.PrepareLiveAudioRequest) -> tokenizer_pb2.PrepareLiveAudioResponse:
        self.live.append(request)
        count = len(request.samples) // 2
        inputs = [common_pb2.ImageInput(name="input_features", data=request.samples)] if count or request.ends else []
        audio = common_pb2.Image(num_tokens=count, inputs=inputs)
        return tokenizer_pb2.PrepareLiveAudioResponse(audio=audio, num_used=count)


def says(monkeypatch: pytest.MonkeyPatch, said: Callable[[Request], Sequence[int]]) -> None:
    """Makes the engine write these tokens, three in each step, as far as requests allow."""

    def step(self: FakeEngine, request: Request) -> None:
        whole = said(request)
        token_ids = whole[: request.limit]
        end = request.produced[0] + 3
        piece = token_ids[request.produced[0] : end]
        delta = request.outbox.post().deltas.add(stream_id=request.stream_id, token_ids=piece)
        for token_id in piece if request.generation.sampling.HasField("logprobs") else ():
            delta.logprobs.add(token_ids=[token_id], logprobs=[LOGPROB], rank=1)
        request.produced[0] = end
        if end >= len(token_ids):
            ended = len(token_ids) == len(whole)
            delta.finish_reason = common_pb2.FINISH_REASON_STOP if ended else common_pb2.FINISH_REASON_LENGTH
            request.stopped[0] = len(token_ids)
        self._note_end(request, delta)

    monkeypatch.setattr(FakeEngine, "_step", step)
