"""Starts the requests of a transcription: one for each piece of the recording."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import replace

from starlette.requests import Request

from gateway.answers.collecting import collect
from gateway.context import context_of
from gateway.endpoints import chat
from gateway.protocol.chat import ChatCompletionRequest
from gateway.requests.caller import tenant_of
from gateway.requests.chain import AnswerChain
from gateway.requests.field_names import told_as
from gateway.requests.generation_request import GenerationRequest
from gateway.requests.speech_formats import FILE_URL
from gateway.requests.state import RequestState
from gateway.requests.transcription import Transcribing
from gateway.services.tokenizer import AudioPiece
from quire.errors import Cancelled, Internal


class Transcriber:
    """One transcription or translation.

    Attributes:
        asked: what the model is asked; with the language once that is known.
        pieces: of the recording, as far as they have been begun, without their files.
    """

    def __init__(self, request: Request, asked: Transcribing) -> None:
        self.asked = asked
        self.pieces: list[AudioPiece] = []
        self._request, self._context = request, context_of(request)
        self._request_id = ""  # of the first piece
        self._is_whole = False  # whether the model takes the recording as it is

    @property
    def seconds(self) -> float:
        """Length of the recording, as far as it has been begun."""
        return self.pieces[-1].end_seconds

    async def begin(self, file: bytes, held: contextlib.ExitStack) -> AnswerChain:
        """Starts the first piece; the others start while the chain is read.

        Args:
            held: what is kept until the file is no longer needed; emptied.

        Raises:
            QuireError: the recording cannot be read, or the request is wrong or cannot be started.
        """
        states = self._states(file, held)
        first = await anext(states, None)
        if first is None:
            raise Internal("The tokenizer service found no piece in the recording.")
        if self._is_whole:
            await states.aclose()
        return AnswerChain(first, states)

    async def _states(self, file: bytes, held: contextlib.ExitStack) -> AsyncGenerator[RequestState, None]:
        """Yields the pieces' requests, each when it has started."""
        with held.pop_all() as own, told_as(self.asked.told_as):
            pieces = await self._split(file, own)
            self._is_whole = len(pieces) == 1
            while pieces:
                piece = pieces.popleft()
                yield await self._started(piece, piece.file or file)

    async def _split(self, file: bytes, held: contextlib.ExitStack) -> deque[AudioPiece]:
        """Returns all pieces. They wait here: whoever cuts recordings must not wait for texts to be written."""
        pieces: deque[AudioPiece] = deque()
        async with contextlib.aclosing(self._context.tokenizer.split_audio(file)) as found:
            async for piece in found:
                held.enter_context(self._context.uploads.held(tenant_of(self._request), len(piece.file)))
                pieces.append(piece)
        return pieces

    async def _started(self, piece: AudioPiece, file: bytes) -> RequestState:
        if self.asked.asked.languages:
            self.asked = self.asked.spoken_in(await self._language(file))
        generation = await self._prepared(self.asked.chat, file)
        if self.pieces:
            generation = self._part(generation, str(len(self.pieces)))
        else:
            self._request_id = generation.request_id
        self.pieces.append(replace(piece, file=b""))
        return await self._context.pipeline.start(generation)

    async def _language(self, file: bytes) -> str:
        """Returns the code of the language that is spoken in a piece.

        Raises:
            QuireError: the request failed.
            Cancelled: the client has disconnected, or the request was aborted.
        """
        languages = self.asked.asked.languages
        generation = await self._prepared(self.asked.question, file)
        self._request_id = generation.request_id
        state = await self._context.pipeline.start(self._part(generation, "language"))
        (choice,) = await collect(state, 1, self._request.receive)
        if not choice.token_ids:
            raise Cancelled("The request was aborted before the language was known.")
        return languages[choice.token_ids[0]]

    async def _prepared(self, asked: ChatCompletionRequest, file: bytes) -> GenerationRequest:
        parser = self.asked.asked.parser
        return await chat.prepare(
            self._request, asked, [asked.messages], uploads={FILE_URL: file}, parsers=(parser,) if parser else ()
        )

    def _part(self, generation: GenerationRequest, name: str) -> GenerationRequest:
        """Gives a request an id of its own."""
        return replace(generation, request_id=f"{self._request_id}-{name}", part_of=self._request_id)
