"""Cuts long recordings into pieces that the model takes, in a child process that can be killed."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

from quire.errors import InvalidRequest, Overloaded
from quire.pcm import SAMPLE_BYTES, wav_file
from tokenizer_svc.child import Message
from tokenizer_svc.child_pool import ChildEnded, ChildPool, ChildTooSlow

MAX_SECONDS = 7200.0  # of a recording
FILE_PARAMETER = "file"
_TIMEOUT_SECONDS = 60.0
_AT_ONCE = 2  # whose samples are in memory, up to 230 MB each; one is cut while another is sent
_MAX_WAITING = 64


@dataclass(frozen=True)
class AudioPiece:
    """A piece of a recording.

    Attributes:
        file: a WAV file; empty if the piece is the whole recording.
    """

    start_seconds: float
    seconds: float
    file: bytes


class AudioSplitter:
    """Cuts recordings. Used from one event loop."""

    def __init__(self, setup: Message) -> None:
        """
        Args:
            setup: of the processes; see `media_process`.
        """
        # Apart from those that prepare audio, which would wait for long recordings.
        self._pool = ChildPool(
            "tokenizer_svc.media_process", setup, Message(), work="recordings to cut into pieces",
            timeout_seconds=_TIMEOUT_SECONDS, num_processes=1,
        )  # fmt: skip
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._waiting = 0

    async def prepare(self) -> None:
        """Starts the process ahead of the first recording."""
        await self._pool.prepare()

    async def close(self) -> None:
        """Ends the process."""
        await self._pool.close()

    @contextlib.asynccontextmanager
    async def split(self, file: bytes) -> AsyncIterator[Iterator[AudioPiece]]:
        """Cuts a recording at quiet places. Its samples are in memory within the context.

        Yields: the pieces, in their order. Joined, they are the recording.

        Raises:
            InvalidRequest: it is no recording, is too long, or takes too much time or memory.
            Overloaded: too many wait already, or the machine is too busy.
        """
        if not file:
            raise InvalidRequest("The audio is empty. Send the file's content.", parameter=FILE_PARAMETER)
        if self._waiting >= _MAX_WAITING:
            raise Overloaded("Too many recordings to cut into pieces are already waiting; try again in a moment.")
        self._waiting += 1
        try:
            await self._turns.acquire()
        finally:
            self._waiting -= 1
        try:
            yield _pieces(await self._ask(file))
        finally:
            self._turns.release()

    async def _ask(self, file: bytes) -> Message:
        try:
            answer = await self._pool.ask(Message({"most_seconds": MAX_SECONDS}, file))
        except ChildTooSlow:
            problem = f"The audio takes longer than {_TIMEOUT_SECONDS:g} s to cut into pieces. Send a shorter one."
        except ChildEnded:
            problem = "The audio takes too much memory. Send a shorter one."
        else:
            if (problem := answer.fields.get("error", "")) == "":
                return answer
        raise InvalidRequest(problem, parameter=FILE_PARAMETER)


def _pieces(answer: Message) -> Iterator[AudioPiece]:
    """The pieces in a process's answer, each made once it is wanted."""
    rate, samples = answer.fields["rate"], memoryview(answer.payload)
    for start, end in itertools.pairwise([0, *answer.fields["ends"]]):
        own = samples[start * SAMPLE_BYTES : end * SAMPLE_BYTES]
        yield AudioPiece(start / rate, (end - start) / rate, wav_file(own, rate) if own else b"")
