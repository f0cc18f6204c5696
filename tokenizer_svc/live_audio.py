"""Prepares recordings that are still coming, in a child process of its own: whole recordings take seconds there."""

from __future__ import annotations

from dataclasses import dataclass

from quire.errors import InvalidRequest, Unavailable
from quire.images import Image, ImageInput
from quire.pcm import LIVE_RATE, SAMPLE_BYTES
from tokenizer_svc.child import Message
from tokenizer_svc.child_pool import ChildEnded, ChildPool, ChildTooSlow

_PARAMETER = "samples"
_MOST_SECONDS = 60  # of audio
_TIMEOUT_SECONDS = 10.0
_MAX_WAITING = 1024


@dataclass(frozen=True)
class LivePart:
    """A part of a recording; see quire.v1.PrepareLiveAudioResponse."""

    audio: Image
    num_used: int


class LiveAudioPreparer:
    """Prepares parts of recordings. Used from one event loop."""

    def __init__(self, setup: Message) -> None:
        """
        Args:
            setup: of the process; see `media_process`.
        """
        self._pool = ChildPool(
            "tokenizer_svc.media_process", setup, Message(), work="audio that is still coming",
            timeout_seconds=_TIMEOUT_SECONDS, max_waiting=_MAX_WAITING, num_processes=1,
        )  # fmt: skip

    async def start(self) -> None:
        """Starts the process ahead of the first recording."""
        await self._pool.prepare()

    async def close(self) -> None:
        """Ends the process."""
        await self._pool.close()

    async def prepare(self, samples: bytes, *, begins: bool, ends: bool) -> LivePart:
        """See quire.v1.PrepareLiveAudioRequest.

        Raises:
            InvalidRequest: these are no samples, or too many.
            Unavailable: the process has died, or the machine is too busy.
            Overloaded: too many wait already.
        """
        most = _MOST_SECONDS * LIVE_RATE * SAMPLE_BYTES
        if len(samples) % SAMPLE_BYTES or len(samples) > most:
            raise InvalidRequest(
                f"samples has {len(samples)} bytes; expected {SAMPLE_BYTES} for each sample, and at most {most}.",
                parameter=_PARAMETER,
            )
        try:
            answer = await self._pool.ask(Message({"live": {"begins": begins, "ends": ends}}, samples))
        except (ChildTooSlow, ChildEnded):
            raise Unavailable("Audio that is still coming cannot be prepared now; try again in a moment.") from None
        fields = answer.fields
        return LivePart(Image(0, fields["num_tokens"], inputs_of(answer)), fields["num_used"])


def inputs_of(answer: Message) -> tuple[ImageInput, ...]:
    """The encoder's inputs in a process's answer."""
    inputs, start = [], 0
    for name, dtype, shape, size in answer.fields["inputs"]:
        inputs.append(ImageInput(name, dtype, tuple(shape), answer.payload[start : start + size]))
        start += size
    return tuple(inputs)
