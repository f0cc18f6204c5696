"""Records one answer as it arrives: the times of its pieces, and the token counts that the server reports."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter
from typing import Protocol

import msgspec

_SHOWN_ERROR = 500


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[msgspec.Raw] | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Event(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: msgspec.Raw = msgspec.Raw()


_EVENTS = msgspec.json.Decoder(_Event)


@dataclass
class Answer:
    """The outcome of one request. Times are perf_counter's, in seconds.

    Attributes:
        queued: seconds that it waited inside the benchmark.
        times: time of arrival of each piece.
        output_tokens: as the server counts them; the number of pieces if it does not.
        error: what went wrong; empty if nothing did.
    """

    prompt_tokens: int
    start: float = 0.0
    queued: float = 0.0
    times: list[float] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    output_tokens: int = 0
    error: str = ""

    @property
    def succeeded(self) -> bool:
        return not self.error

    @property
    def first(self) -> float:
        """TTFT: seconds to the first piece; 0 without any."""
        return self.times[0] - self.start if self.times else 0.0

    @property
    def latency(self) -> float:
        """Seconds to the last piece; 0 without any."""
        return self.times[-1] - self.start if self.times else 0.0

    @property
    def between(self) -> list[float]:
        """ITL: seconds between pieces."""
        return [later - earlier for earlier, later in zip(self.times, self.times[1:], strict=False)]

    @property
    def per_output_token(self) -> float:
        """TPOT: seconds per token after the first; 0 if there is at most one token."""
        return (self.latency - self.first) / (self.output_tokens - 1) if self.output_tokens > 1 else 0.0

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def fail(self, message: str) -> None:
        """Marks the answer as failed; the first failure counts."""
        self.error = self.error or message[:_SHOWN_ERROR] or "failed"

    def finish(self) -> None:
        """Completes the record once nothing more arrives."""
        if not self.times:
            self.fail("the server sent no token")
        self.output_tokens = self.output_tokens or len(self.pieces)


class AnswerReader(Protocol):
    """Reads the body of a successful response into an answer."""

    def feed(self, piece: bytes) -> None:
        """Processes a piece of the body.

        Raises:
            ValueError: the body is malformed.
        """

    def end(self) -> None:
        """Ends the body; raises like `feed`."""


class WholeReader:
    """Reads an answer that arrives in one piece and has no tokens, such as embeddings."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._content = bytearray()

    def feed(self, piece: bytes) -> None:
        """See AnswerReader."""
        self._content += piece

    def end(self) -> None:
        """See AnswerReader."""
        self._answer.times.append(perf_counter())
        told = _EVENTS.decode(self._content)
        if told.usage:
            self._answer.prompt_tokens = told.usage.prompt_tokens or self._answer.prompt_tokens


class EventReader:
    """Reads server-sent events into an answer."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._rest = b""

    def feed(self, piece: bytes) -> None:
        """Processes a piece of the body.

        Raises:
            ValueError: an event is malformed.
        """
        now = perf_counter()
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                content = line[5:].strip()
                if content != b"[DONE]":
                    self._take(_EVENTS.decode(content), now)

    def end(self) -> None:
        """See AnswerReader. Does nothing: the last event is recognizable by itself."""

    def _take(self, event: _Event, now: float) -> None:
        answer = self._answer
        if (error := bytes(event.error)) not in (b"", b"null"):
            answer.fail(error.decode(errors="replace"))
        if event.choices and (piece := _text(event.choices[0])) is not None:
            answer.times.append(now)
            answer.pieces.append(piece)
        if event.usage:
            answer.output_tokens = event.usage.completion_tokens
            answer.prompt_tokens = event.usage.prompt_tokens or answer.prompt_tokens


def _text(choice: _Choice) -> str | None:
    """The text in the choice, or None if it has no token: a chat's first event may contain only the role."""
    if choice.delta is None:
        return choice.text or ""
    delta = choice.delta
    if delta.content or delta.reasoning_content or delta.reasoning:
        return delta.content or delta.reasoning_content or delta.reasoning
    return "" if delta.tool_calls else None
