"""Images, videos and audio of prompts: prepared in child processes that can be killed, and given their places among the
tokens."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import importlib.util
import itertools
import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quire.errors import InvalidRequest, StartupError, Unavailable
from quire.images import MAX_IMAGES, SOUND, Image, check_size
from quire.media import MediaKind
from quire.options.multimodal import ImageProcessorOptions
from quire.tokenizer.tekken import is_live
from tokenizer_svc.audio_settings import read_audio_settings
from tokenizer_svc.audio_splitter import FILE_PARAMETER, AudioPiece, AudioSplitter
from tokenizer_svc.byte_cache import ByteCache
from tokenizer_svc.child import Message
from tokenizer_svc.child_pool import ChildEnded, ChildPool, ChildTooSlow
from tokenizer_svc.live_audio import LiveAudioPreparer, LivePart, inputs_of

logger = logging.getLogger(__name__)

_FILES = ("processor_config.json", "preprocessor_config.json")
_PACKAGES = {"PIL": "pillow", "transformers": "transformers", "numpy": "numpy"}  # module → its package
_SECONDS = {MediaKind.IMAGE: 10.0, MediaKind.VIDEO: 30.0, MediaKind.AUDIO: 20.0}  # to prepare one
# Separate ones, so that images do not wait for videos.
_PROCESSES = {MediaKind.IMAGE: 2, MediaKind.VIDEO: 1, MediaKind.AUDIO: 1}
# In messages: what one is, what it should rather be, and what it is if it has no tokens; and all of a kind.
_ONE = {
    MediaKind.IMAGE: ("An image", "a smaller one", "small"), MediaKind.VIDEO: ("A video", "a smaller one", "small"),
    MediaKind.AUDIO: ("The audio", "a shorter one", "short"),
}  # fmt: skip
_ALL = {MediaKind.IMAGE: "images", MediaKind.VIDEO: "videos", MediaKind.AUDIO: "audio"}
_MAX_WAITING = 64
_AT_ONCE = 4  # of a request that are prepared, or wait for it, at a time: they share the processes with others
_ENTRY_BYTES = 1024  # approximate memory of a cache entry, apart from its bytes
_PARAMETER = "messages"


@dataclass(frozen=True)
class Medium:
    """An image, a video or an audio to prepare: its file, or the image files that are its frames.

    Attributes:
        tensors: names of the tensors that the files are, for an image that comes as embeddings.
    """

    kind: MediaKind
    files: tuple[bytes, ...]
    tensors: tuple[str, ...] = ()


@dataclass(frozen=True)
class PreparedMedium:
    """An image, a video or an audio for the model, without a place; see Processed."""

    kind: MediaKind
    text: str
    num_tokens: int
    image: Image
    seconds: float = 0.0
    number_marks: tuple[str, ...] = ()

    def numbered_text(self, number: int) -> str:
        """The text, behind this number if the model numbers images."""
        return self.text if not self.number_marks else f"{number}".join(self.number_marks) + self.text

    @property
    def num_bytes(self) -> int:
        """Approximate memory that it takes."""
        return self.image.num_bytes + len(self.text) + _ENTRY_BYTES


@dataclass(frozen=True)
class MediaSettings:
    """What a request changes: settings of the model's processor, and how files are read, by kind."""

    processor: Mapping[str, Any]
    reading: Mapping[str, Any]


class MediaPreparer:
    """Prepares images, videos and audio as the model's processor does. Used from one event loop."""

    def __init__(
        self, folder: Path | None, options: ImageProcessorOptions,
        of_mistral: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:  # fmt: skip
        """
        Args:
            folder: of the tokenizer; None for one that is in no folder.
            of_mistral: settings that take the place of the folder's, see `tekken_media`.
        """
        has_files = any(folder is not None and (folder / name).is_file() for name in _FILES)
        self._refusal = _refusal(has_files if of_mistral is None else bool(of_mistral))
        self._first_kind = _first_kind(folder) if of_mistral is None else MediaKind(min(of_mistral, default="image"))
        self._own = MediaSettings(options.mm_processor_kwargs, options.media_io_kwargs)
        self._known: ByteCache[bytes, PreparedMedium] = ByteCache(int(options.mm_processor_cache_gb * 2**30))
        setup = {
            "folder": str(folder), "settings": options.mm_processor_kwargs,
            "video_pruning_rate": options.video_pruning_rate, "of_mistral": of_mistral,
        }  # fmt: skip
        self._pruning_rate = options.video_pruning_rate
        self._pools = {
            kind: ChildPool(
                "tokenizer_svc.media_process", Message(setup), Message(),
                work=f"{_ALL[kind]} to prepare", timeout_seconds=_SECONDS[kind], max_waiting=_MAX_WAITING,
                num_processes=_PROCESSES[kind],
            )
            for kind in MediaKind
        }  # fmt: skip
        self._splitter = AudioSplitter(Message(setup))
        is_heard_live = is_live((of_mistral or {}).get(MediaKind.AUDIO) or {})
        self._live = LiveAudioPreparer(Message(setup)) if is_heard_live else None
        # What stands for an image, a video or an audio in rendered conversations, by the kinds that the model reads;
        # and the same with what is around it, for templates that take contents as strings.
        self.placeholders: dict[str, str] = {}
        self.wrapped: dict[str, str] = {}
        self._token_ids: dict[MediaKind, int] = {}
        # All tokens in whose place encoders' embeddings are put, and the one of their kind.
        self._own_tokens: dict[int, int] = {}
        self._can_prune, self._fault = False, ""

    async def start(self) -> None:
        """Starts a process, if the model comes with a processor. Without one, all media are refused.

        Raises:
            StartupError: an option is not for this model.
        """
        if not self._refusal:
            await self._start_first()
        self._check_options()

    async def prepare_others(self) -> None:
        """Starts a process for each other kind of media that the model reads, ahead of the first request. One after the
        other: they are not urgent, and each takes seconds of a core."""
        for kind in self._token_ids:
            await self._pools[kind].prepare()
        if MediaKind.AUDIO in self._token_ids:
            await self._splitter.prepare()
        if self._live is not None:
            await self._live.start()

    async def _start_first(self) -> None:
        try:
            pool = self._pools[self._first_kind]
            await pool.start()
            self.use((await pool.ask(Message())).fields)
        except (Unavailable, ChildEnded, ChildTooSlow):
            self._refusal = "its processor could not be started; the tokenizer service's log may say why"
            logger.warning("images, videos and audio are refused: %s", self._refusal)

    def _check_options(self) -> None:
        if self._own.processor and MediaKind.IMAGE not in self._token_ids:
            raise StartupError(
                "--mm-processor-kwargs is for models that read images and videos, which this one does not; leave it "
                "out."
            )
        if self._fault:
            raise StartupError(f"--mm-processor-kwargs {json.dumps(self._own.processor)}: {self._fault}")
        if unread := self._own.reading.keys() - self._token_ids.keys():
            raise StartupError(f"--media-io-kwargs: this model reads no {_ALL[MediaKind(min(unread))]}; leave it out.")
        if self._pruning_rate and not self._can_prune:
            raise StartupError(
                f"--video-pruning-rate {self._pruning_rate:g}: this model's videos cannot be pruned, only those of "
                "Qwen2-VL and Qwen2.5-VL can; leave it out."
            )

    def use(self, facts: Mapping[str, Any]) -> None:
        """Takes a process's report on how prompts mark media."""
        self._can_prune, self._fault = facts["can_prune"], facts["fault"]
        for kind, (placeholder, wrapped, token_id) in facts["marks"].items():
            self.placeholders[kind], self.wrapped[kind] = placeholder, wrapped
            self._token_ids[MediaKind(kind)] = token_id
        self._own_tokens = {token_id: token_id for token_id in self._token_ids.values()}
        for kind, mark_ids in facts["mark_ids"].items():
            self._own_tokens |= dict.fromkeys(mark_ids, self._token_ids[MediaKind(kind)])

    async def close(self) -> None:
        """Ends the processes."""
        live = () if self._live is None else (self._live,)
        await asyncio.gather(*(each.close() for each in (self._splitter, *live, *self._pools.values())))

    def reset_cache(self) -> None:
        """Forgets all that has been prepared."""
        self._known.clear()

    def split(self, file: bytes) -> contextlib.AbstractAsyncContextManager[Iterator[AudioPiece]]:
        """See AudioSplitter.split.

        Raises:
            InvalidRequest: also if the model reads no audio.
        """
        self._check_kinds((MediaKind.AUDIO,), FILE_PARAMETER)
        return self._splitter.split(file)

    async def prepare_part(self, samples: bytes, *, begins: bool, ends: bool) -> LivePart:
        """See LiveAudioPreparer.prepare.

        Raises:
            InvalidRequest: also if the model does not write while it hears.
        """
        if self._live is None:
            raise InvalidRequest("This model does not write while it hears: send recordings when they are over.")
        return await self._live.prepare(samples, begins=begins, ends=ends)

    async def prepare(self, media: Sequence[Medium], settings: MediaSettings) -> list[PreparedMedium]:
        """Prepares images, videos and audio, each from the cache if it has been prepared before.

        Args:
            settings: of a request.

        Raises:
            InvalidRequest: the model has no processor for them, a file is not what it should be or takes too much time
                or memory, the settings do not suit the processor, or there are too many.
            Unavailable: the processes are still starting.
            Overloaded: too many wait already, or the machine is too busy.
        """
        self._check_kinds([each.kind for each in media], _PARAMETER)
        if len(media) > MAX_IMAGES:
            raise InvalidRequest(
                f"There are {len(media)} images, videos and audios; at most {MAX_IMAGES} are allowed.",
                parameter=_PARAMETER,
            )
        prepared: list[PreparedMedium] = []
        for start in range(0, len(media), _AT_ONCE):
            some = media[start : start + _AT_ONCE]
            prepared += await asyncio.gather(*(self._prepare(medium, settings) for medium in some))
            check_size([each.image for each in prepared], _PARAMETER)
        return prepared

    def _check_kinds(self, kinds: Sequence[MediaKind], parameter: str) -> None:
        """
        Raises:
            InvalidRequest: the model does not read one of them.
            Unavailable: it is not yet known which ones it reads; gateways ask again.
        """
        if self._refusal:
            raise InvalidRequest(f"This model reads text only: {self._refusal}.", parameter=parameter)
        if not self._token_ids:
            raise Unavailable("Images, videos and audio cannot be prepared yet; try again in a moment.")
        for kind in kinds:
            if kind not in self._token_ids:
                raise InvalidRequest(f"This model reads no {_ALL[kind]}.", parameter=parameter)

    async def _prepare(self, medium: Medium, settings: MediaSettings) -> PreparedMedium:
        kind, (name, smaller, small) = medium.kind, _ONE[medium.kind]
        reading = {**self._own.reading.get(kind, {}), **settings.reading.get(kind, {})}
        message = message_of(medium, {**self._own.processor, **settings.processor}, reading)
        head = json.dumps(message.fields, sort_keys=True).encode()
        key = hashlib.sha256(head + hashlib.sha256(message.payload).digest()).digest()
        if (known := self._known.get(key)) is not None:
            return known
        if not all(medium.files) or not medium.files:
            raise InvalidRequest(f"{name} is empty. Send the file's content.", parameter=_PARAMETER)
        parameter = _PARAMETER
        try:
            answer = await self._pools[kind].ask(message)
        except ChildTooSlow:
            problem = f"{name} takes longer than {_SECONDS[kind]:g} s to prepare. Send {smaller}."
        except ChildEnded:
            problem = f"{name} takes too much memory. Send {smaller}."
        else:
            if (problem := answer.fields.get("error", "")) == "":
                found = prepared_medium(kind, answer)
                if not found.num_tokens:
                    raise InvalidRequest(f"{name} is too {small} to have any tokens.", parameter=_PARAMETER)
                self._known.put(key, found, found.num_bytes)
                return found
            parameter = answer.fields["parameter"] or parameter
        raise InvalidRequest(problem, parameter=parameter)

    def insert(self, text: str, media: Sequence[PreparedMedium]) -> tuple[str, list[PreparedMedium]]:
        """Replaces each placeholder in a rendered conversation by the text of its image, video or audio.

        Args:
            media: those of each kind in their order.

        Returns:
            The text, and all media in the order of their places.

        Raises:
            InvalidRequest: there is not one placeholder for each.
        """
        kinds = {placeholder: MediaKind(kind) for kind, placeholder in self.placeholders.items()}
        # The longest first, so that one that begins like another is not taken for it.
        longest_first = sorted(kinds, key=len, reverse=True)
        between = re.split(f"({'|'.join(map(re.escape, longest_first))})", text)
        ordered = self._ordered([kinds[placeholder] for placeholder in between[1::2]], media)
        numbers = {kind: itertools.count() for kind in MediaKind}
        between[1::2] = [each.numbered_text(next(numbers[each.kind])) for each in ordered]
        return "".join(between), ordered

    def ordered(self, token_ids: Sequence[int], media: Sequence[PreparedMedium]) -> list[PreparedMedium]:
        """All media in the order of their places in a rendered conversation, each of which has a token of its kind.

        Args: see `insert`.

        Raises: see `insert`.
        """
        kinds = {token_id: kind for kind, token_id in self._token_ids.items()}
        return self._ordered([kinds[token] for token in token_ids if token in kinds], media)

    def replaced(self, token_ids: Sequence[int], inserted: Sequence[Sequence[int]]) -> list[int]:
        """Replaces each token that stands for an image, a video or an audio in a rendered conversation.

        Args:
            inserted: the tokens that take the place of each.
        """
        own, waiting = set(self._token_ids.values()), iter(inserted)
        return [each for token in token_ids for each in (next(waiting) if token in own else (token,))]

    def _ordered(self, wanted: Sequence[MediaKind], media: Sequence[PreparedMedium]) -> list[PreparedMedium]:
        for kind, placeholder in self.placeholders.items():
            number, count = wanted.count(MediaKind(kind)), sum(each.kind == kind for each in media)
            if number != count:
                raise InvalidRequest(
                    f"The chat template has written {number} {kind} placeholders ({placeholder}) for {count} {kind}s. "
                    f"Remove such placeholders from texts, and place {kind}s where the template expects them.",
                    parameter=_PARAMETER,
                )
        waiting = {kind: iter([each for each in media if each.kind is kind]) for kind in MediaKind}
        return [next(waiting[kind]) for kind in wanted]

    def place(self, token_ids: Sequence[int], media: Sequence[PreparedMedium]) -> list[Image]:
        """The images, videos and audios at their places among a prompt's tokens.

        Args:
            media: in the order of their places.

        Raises:
            InvalidRequest: there are more or fewer tokens for them than embeddings.
        """
        positions = [position for position, token in enumerate(token_ids) if token in self._own_tokens]
        wanted = [token for each in media for token in self._tokens_of(each)]
        if [self._own_tokens[token_ids[position]] for position in positions] != wanted:
            own = sorted(self._own_tokens)
            raise InvalidRequest(
                f"The prompt has {len(positions)} tokens for images, videos or audio (ids {own}) instead of "
                f"{len(wanted)}, or in another order. Remove such tokens from texts.",
                parameter=_PARAMETER,
            )
        placed, start = [], 0
        for each in media:
            places = positions[start : start + each.num_tokens]
            placed.append(each.image.at(places[0], places[-1] - places[0] + 1))
            start += each.num_tokens
        return placed

    def _tokens_of(self, medium: PreparedMedium) -> list[int]:
        """The tokens that a prompt has for its embeddings, those of a kind as one of them."""
        own = self._token_ids[medium.kind]
        for each in medium.image.inputs:
            if each.name == SOUND:
                return [self._token_ids[MediaKind.AUDIO] if is_sound else own for is_sound in each.data]
        return [own] * medium.num_tokens


def message_of(medium: Medium, settings: Mapping[str, Any], reading: Mapping[str, Any]) -> Message:
    """What a process is asked; see `media_process.make`."""
    fields = {
        "kind": medium.kind, "settings": dict(settings), "reading": dict(reading),
        "sizes": [len(file) for file in medium.files], "tensors": [*medium.tensors],
    }  # fmt: skip
    return Message(fields, b"".join(medium.files))


def prepared_medium(kind: MediaKind, answer: Message) -> PreparedMedium:
    """The image, video or audio in a process's answer."""
    fields, inputs = answer.fields, inputs_of(answer)
    image = Image(0, 0, inputs, tuple(fields["pixel_scale"]), tuple(fields["pixel_shift"]))
    marks = tuple(fields["number_marks"])
    return PreparedMedium(kind, fields["text"], fields["num_tokens"], image, fields["seconds"], marks)


def _refusal(has_settings: bool) -> str:
    """Why media cannot be prepared; empty if they can."""
    if not has_settings:
        return "it comes without a processor for anything else"
    missing = [package for module, package in _PACKAGES.items() if importlib.util.find_spec(module) is None]
    if missing:
        logger.warning(
            "images, videos and audio are refused: %s missing; pip install 'quire[images]'", " and ".join(missing)
        )
        return "the tokenizer service was installed without quire[images]"
    return ""


def _first_kind(folder: Path | None) -> MediaKind:
    """A kind that the model reads, if its files are as they should be."""
    with contextlib.suppress(Exception):  # whatever is wrong with the files, the process will say so
        if folder and read_audio_settings(folder):
            return MediaKind.AUDIO
    return MediaKind.IMAGE
