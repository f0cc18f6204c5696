"""A recording that goes on while a sequence writes it down. Changed in the engine's thread only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from quire.errors import InvalidRequest
from quire.images import FEATURES, MAX_IMAGES_BYTES, Image

_LAST_TOKENS = 2  # that the last audio has at least: its sequence may have written one more than it has heard


class Recording:
    """What has come of a recording.

    It is encoded piece by piece while its sequence runs. All of it is kept, because a sequence that returns after a
    preemption has it encoded from its beginning.

    Attributes:
        image: what is encoded at once when the sequence starts.
        is_over: whether no more may come.
        key: of its encoding on the ranks while its sequence runs; else 0.
        num_heard: tokens of which the ranks have what they hear, or will have when the sequence starts.
    """

    __slots__ = ("_begun", "_frames_per_token", "_more", "_num_bytes", "_num_frames", "image", "is_over", "key",
                 "num_heard")  # fmt: skip

    def __init__(self, image: Image, frames_per_token: int) -> None:
        """
        Args:
            image: its beginning.
            frames_per_token: see ModelFacts.
        """
        self.image = image
        self.is_over = False
        self.key = 0
        self._frames_per_token = frames_per_token
        self._num_frames, self._num_bytes = image.num_frames, image.num_bytes
        self._begun: list[Image] = []  # pieces after the image, in their order, whose encoding has been begun
        self._more: list[Image] = []  # those after these
        self.num_heard = self.tokens_of(image)

    def tokens_of(self, audio: Image) -> int:
        """Number of tokens that hear an audio."""
        return audio.num_frames // self._frames_per_token

    @property
    def num_tokens(self) -> int:
        """Number of tokens that hear what has come."""
        return self._num_frames // self._frames_per_token

    @property
    def has_more(self) -> bool:
        """Whether `take` would return something."""
        return bool(self._more)

    def append(self, audio: Image, *, is_last: bool) -> None:
        """Adds what comes next.

        Raises:
            InvalidRequest: the recording is over or too long, or the audio is not what whole tokens hear.
        """
        if self.is_over:
            raise _refused("the recording is over")
        for each in audio.inputs:
            each.check()
        count, least = audio.num_frames, _LAST_TOKENS if is_last else 1
        if _form(audio) != _form(self.image) or any(each.shape[-1] != count for each in audio.inputs):
            raise _refused("it does not have the inputs with which the recording began, or they differ in their frames")
        if count % self._frames_per_token or count < least * self._frames_per_token:
            raise _refused(f"it has {count} frames; expected those of {least} or more whole tokens, "
                           f"{self._frames_per_token} each")  # fmt: skip
        if self._num_bytes + audio.num_bytes > MAX_IMAGES_BYTES:
            raise _refused(f"with it, the recording takes more than {MAX_IMAGES_BYTES} bytes for the model")
        self._num_frames += count
        self._num_bytes += audio.num_bytes
        self._more.append(audio)
        self.is_over = is_last

    def start(self, key: int) -> None:
        """Notes that the sequence has started.

        Args:
            key: of the image's encoding.
        """
        self.key = key

    def take(self) -> Image | None:
        """Returns what has come since the last call, to be encoded now; None if nothing has."""
        if not self._more:
            return None
        audio = _joined(self._more)
        self._begun.append(audio)
        self._more = []
        return audio

    def rewind(self) -> None:
        """Has the sequence, which has lost its slot, start with all that has come."""
        digest = self.image.digest
        self.image = _joined((self.image, *self._begun, *self._more))
        self.image.__dict__["digest"] = digest
        self._begun, self._more = [], []
        self.num_heard = self.tokens_of(self.image)


def _form(audio: Image) -> list[tuple[str, str, tuple[int, ...]]]:
    """What all pieces of a recording have in common: `_joined` relies on it, in the engine's thread."""
    return [(each.name, each.dtype, each.shape[:-1]) for each in audio.inputs]


def _joined(audios: Sequence[Image]) -> Image:
    """Audios as one, in the place of the first one."""
    if len(audios) == 1:
        return audios[0]
    first, inputs = audios[0], []
    for place, each in enumerate(first.inputs):  # features [1, mels, frames], and a mask [1, frames]
        dtype = np.float32 if each.name == FEATURES else np.bool_
        own = [audio.inputs[place] for audio in audios]
        whole = np.concatenate([np.frombuffer(part.data, dtype).reshape(part.shape) for part in own], axis=-1)
        inputs.append(replace(each, shape=whole.shape, data=whole.tobytes()))
    return replace(first, inputs=tuple(inputs))


def _refused(why: str) -> InvalidRequest:
    return InvalidRequest(
        f"appends: {why}. Send audio as the tokenizer service's PrepareLiveAudio returns it.", parameter="appends"
    )
