"""Text to token ids and back: the calls of the tokenizer service, apart from sessions."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeVar

import msgspec

from gateway.media.conversations import MediaFiles
from gateway.requests.constraint import NamedConstraint
from gateway.requests.generation_request import TokenizedPrompt
from gateway.requests.pooling_request import TokenizedInput, Truncation
from gateway.services.convert import from_truncation, to_conversation_prompt, to_input, to_prompt
from gateway.services.together import Together
from gateway.services.tokenizers import Tokenizers
from quire.errors import InvalidRequest
from quire.images import Image
from quire.rpc.constraint import from_asked, to_constraint
from quire.rpc.images import to_images
from quire.structured.base import Constraint
from quire.v1 import tokenizer_pb2
from quire.work_pool import WorkPool

T = TypeVar("T")

_InputKey = tuple[bool, int, Truncation | None]

_TEXTS_AT_ONCE = 1024  # per call
# Inputs with fewer characters are batched with those of other requests.
_FEW_CHARS = 2000
_IMAGES_SECONDS = 30.0  # of which each image may take a third
_LONG_SECONDS = 60.0  # with videos or audio, and the images
_SPLIT_SECONDS = 120.0
_FILE_SECONDS = 60.0
_LIVE_SECONDS = 15.0
_COMPILE_SECONDS = 30.0  # includes the time for a separate backend process to start
# Converting this many tokens takes about as long as starting a thread.
_MANY_TOKENS = 8 * 1024


@dataclass(frozen=True)
class RenderedChat:
    """A rendered conversation: the prompt, and its text if requested."""

    prompt: TokenizedPrompt
    text: str = ""


@dataclass(frozen=True)
class AudioPiece:
    """A piece of a recording.

    Attributes:
        start_seconds: where it begins in the recording.
        seconds: how long it is.
        file: a WAV file; empty if the piece is the whole recording.
    """

    start_seconds: float
    seconds: float
    file: bytes = b""

    @property
    def end_seconds(self) -> float:
        """Where it ends in the recording. Times come as 32-bit numbers, and are exact to milliseconds."""
        return round(self.start_seconds + self.seconds, 3)


@dataclass(frozen=True)
class LiveAudioPart:
    """A part of a recording that is still coming; see quire.v1.PrepareLiveAudioResponse."""

    audio: Image
    num_used: int


class ConversationForm(IntEnum):
    """What the messages of a conversation are; see quire.v1.ConversationForm."""

    CHAT = tokenizer_pb2.CONVERSATION_FORM_CHAT
    PAIR = tokenizer_pb2.CONVERSATION_FORM_PAIR
    CONTENTS = tokenizer_pb2.CONVERSATION_FORM_CONTENTS


class Tokenizer:
    """The calls of the tokenizer service, apart from sessions."""

    def __init__(self, replicas: Tokenizers, large_requests: WorkPool) -> None:
        """
        Args:
            large_requests: threads for converting very long token lists.
        """
        self._replicas = replicas
        self._large_requests = large_requests
        self._small_inputs: Together[_InputKey, Sequence[str], list[TokenizedInput]]
        self._small_inputs = Together(self._encode_together, _FEW_CHARS)

    async def encode(
        self,
        texts: Sequence[str],
        add_special_tokens: bool,
        *,
        block_size: int = 0,
        cache_salt: str = "",
        adapter: str = "",
        max_tokens: int = 0,
        suffix: str | None = None,
        with_offsets: bool = False,
    ) -> list[TokenizedPrompt]:
        """Returns the token ids of each text, and the keys of their blocks of `block_size` tokens if that is set.

        Args:
            adapter: revision of the adapter the prompt is for, which the block keys depend on; empty for none.
            suffix: the text that follows the part the model has to fill in.
            with_offsets: also returns where each token is in its text.

        Raises:
            ContextTooLong: a text has more than `max_tokens`, which may be known before it is encoded.
            Overloaded: too many large requests are in progress.
        """
        found: list[tokenizer_pb2.TokenSequence] = []
        for start in range(0, len(texts), _TEXTS_AT_ONCE):
            request = tokenizer_pb2.EncodeRequest(
                texts=texts[start : start + _TEXTS_AT_ONCE], add_special_tokens=add_special_tokens,
                block_size=block_size, cache_salt=cache_salt, adapter=adapter, max_tokens=max_tokens, suffix=suffix,
                return_token_offsets=with_offsets,
            )  # fmt: skip
            found += (await self._replicas.call("Encode", request)).sequences
        num_tokens = sum(len(sequence.token_ids) for sequence in found)
        return await self._converted(num_tokens, lambda: [to_prompt(sequence) for sequence in found])

    async def encode_inputs(
        self, texts: Sequence[str], add_special_tokens: bool, max_tokens: int, truncation: Truncation | None
    ) -> list[TokenizedInput]:
        """Encodes texts as inputs of a pooling model.

        Raises:
            ContextTooLong: a text has more than `max_tokens`, and there is no truncation.
            Overloaded: too many large requests are in progress.
        """
        if (size := sum(map(len, texts))) < _FEW_CHARS:
            return await self._small_inputs.add((add_special_tokens, max_tokens, truncation), texts, size)
        return await self._encode_inputs((add_special_tokens, max_tokens, truncation), texts)

    async def _encode_together(self, key: _InputKey, texts: Sequence[Sequence[str]]) -> list[list[TokenizedInput]]:
        """Encodes the texts of several requests in one call."""
        encoded = iter(await self._encode_inputs(key, [text for some in texts for text in some]))
        return [list(itertools.islice(encoded, len(some))) for some in texts]

    async def _encode_inputs(self, key: _InputKey, texts: Sequence[str]) -> list[TokenizedInput]:
        add_special_tokens, max_tokens, truncation = key
        requests = [
            tokenizer_pb2.EncodeRequest(
                texts=texts[start : start + _TEXTS_AT_ONCE], add_special_tokens=add_special_tokens,
                max_tokens=max_tokens, truncation=from_truncation(truncation),
            )
            for start in range(0, len(texts), _TEXTS_AT_ONCE)
        ]  # fmt: skip
        return await self._inputs([(await self._replicas.call("Encode", request)).sequences for request in requests])

    async def encode_pairs(
        self,
        firsts: Sequence[str],
        seconds: Sequence[str],
        max_tokens: int,
        truncation: Truncation | None,
        *,
        max_first_tokens: int = 0,
        max_second_tokens: int = 0,
        template: str | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[TokenizedInput]:
        """Encodes pairs of texts for a model that reads both together.

        Args:
            firsts: one first text for each second text, or one for all.
            max_first_tokens: number of tokens to keep of a first text; 0 for all.
            max_second_tokens: the same for a second text.
            template, kwargs: the model's score template, and variables for it.

        Raises: as `encode_inputs`, for pairs.
        """
        found = []
        for start in range(0, len(seconds), _TEXTS_AT_ONCE):
            stop = start + _TEXTS_AT_ONCE
            request = tokenizer_pb2.EncodePairsRequest(
                first_texts=firsts if len(firsts) == 1 else firsts[start:stop], second_texts=seconds[start:stop],
                max_tokens=max_tokens, truncation=from_truncation(truncation), max_first_tokens=max_first_tokens,
                max_second_tokens=max_second_tokens, chat_template=template or "",
                template_kwargs_json=msgspec.json.encode(kwargs) if kwargs else b"",
            )  # fmt: skip
            found.append((await self._replicas.call("EncodePairs", request)).sequences)
        return await self._inputs(found)

    async def _inputs(self, found: Sequence[Sequence[tokenizer_pb2.TokenSequence]]) -> list[TokenizedInput]:
        num_tokens = sum(len(sequence.token_ids) for sequences in found for sequence in sequences)
        return await self._converted(
            num_tokens, lambda: [to_input(sequence) for sequences in found for sequence in sequences]
        )

    async def decode(self, token_ids: Sequence[int]) -> str:
        """Returns the text of token ids.

        Raises:
            Overloaded: too many large requests are in progress.
        """
        request = await self._converted(len(token_ids), lambda: tokenizer_pb2.DecodeRequest(token_ids=token_ids))
        return str((await self._replicas.call("Decode", request)).text)

    async def token_bytes(self, token_ids: Set[int]) -> dict[int, bytes]:
        """Returns the bytes of each token by itself; without a tokenizer, the text "token_id:N"."""
        if self._replicas.skipped:
            return {token_id: f"token_id:{token_id}".encode() for token_id in token_ids}
        request = tokenizer_pb2.DecodeRequest(token_ids=token_ids, return_token_bytes=True)
        return dict(zip(token_ids, (await self._replicas.call("Decode", request)).token_bytes, strict=True))

    async def token_strings(self, token_ids: Set[int]) -> dict[int, str]:
        """Returns each token as spelled in the vocabulary."""
        request = tokenizer_pb2.DecodeRequest(token_ids=token_ids, return_token_strings=True)
        return dict(zip(token_ids, (await self._replicas.call("Decode", request)).token_strings, strict=True))

    async def render_chat(
        self,
        messages_json: bytes,
        *,
        add_generation_prompt: bool,
        continue_final_message: bool,
        add_special_tokens: bool,
        template: str | None,
        kwargs: Mapping[str, Any] | None,
        default_effort: str = "",
        tools_json: bytes = b"",
        block_size: int = 0,
        cache_salt: str = "",
        adapter: str = "",
        max_tokens: int = 0,
        truncation: Truncation | None = None,
        with_text: bool = False,
        with_offsets: bool = False,
        media: MediaFiles = MediaFiles(),
        processor_settings: Mapping[str, Any] | None = None,
        reading_settings: Mapping[str, Any] | None = None,
        form: ConversationForm = ConversationForm.CHAT,
    ) -> RenderedChat:
        """Renders a conversation by the chat template; the other arguments are as in `encode`.

        Args:
            kwargs: the variables that somebody has set.
            default_effort: how much to think if they do not say, for models that do not refuse it; empty for none.
            media: the files of its image, video and audio parts.
            processor_settings: for the model's image processor, instead of the server's.
            reading_settings: for reading the files, by kind, instead of the server's.
        """
        request = tokenizer_pb2.RenderChatRequest(
            messages_json=messages_json,
            tools_json=tools_json,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            add_special_tokens=add_special_tokens,
            chat_template=template or "",
            template_kwargs_json=msgspec.json.encode(kwargs) if kwargs else b"",
            default_reasoning_effort=default_effort,
            block_size=block_size,
            cache_salt=cache_salt,
            adapter=adapter,
            max_tokens=max_tokens,
            truncation=from_truncation(truncation),
            images=media.images,
            image_processor_kwargs_json=msgspec.json.encode(processor_settings) if processor_settings else b"",
            videos=[tokenizer_pb2.Video(files=files) for files in media.videos],
            audios=media.audios,
            image_embeds=[
                tokenizer_pb2.ImageEmbeds(index=index, tensors=tensors) for index, tensors in media.image_embeds.items()
            ],
            media_io_kwargs_json=msgspec.json.encode(reading_settings) if reading_settings else b"",
            return_token_offsets=with_offsets,
            form=form.value,
        )
        seconds = _LONG_SECONDS if media.videos or media.audios else _IMAGES_SECONDS if media.images else None
        answer: tokenizer_pb2.RenderChatResponse = await self._replicas.call("RenderChat", request, seconds)
        prompt = await self._converted(len(answer.sequence.token_ids), lambda: to_conversation_prompt(answer))
        return RenderedChat(prompt, answer.text if with_text else "")

    async def split_audio(self, file: bytes) -> AsyncGenerator[AudioPiece, None]:
        """Cuts a recording at quiet places, and yields the pieces, each of which the model takes.

        Raises:
            InvalidRequest: it is no recording, or is too long.
        """
        request = tokenizer_pb2.SplitAudioRequest(file=file)
        async with contextlib.aclosing(self._replicas.stream("SplitAudio", request, _SPLIT_SECONDS)) as pieces:
            async for piece in pieces:
                yield AudioPiece(piece.start_seconds, piece.seconds, piece.file)

    async def prepare_live_audio(self, samples: bytes, *, begins: bool, ends: bool) -> LiveAudioPart:
        """Prepares samples of a recording that is still coming, for a model that writes while it hears.

        Args: see quire.v1.PrepareLiveAudioRequest.
        """
        request = tokenizer_pb2.PrepareLiveAudioRequest(samples=samples, begins=begins, ends=ends)
        answer = await self._replicas.call("PrepareLiveAudio", request, _LIVE_SECONDS)
        (audio,) = to_images([answer.audio])
        return LiveAudioPart(audio, answer.num_used)

    async def compile_constraint(self, wanted: NamedConstraint) -> Constraint:
        """Compiles a constraint into the form that engines use.

        Raises:
            InvalidRequest: it is malformed, takes too long, or no backend can express it; names the field it came from.
        """
        try:
            answer = await self._replicas.call("CompileConstraint", from_asked(wanted.asked), _COMPILE_SECONDS)
        except InvalidRequest as error:
            raise InvalidRequest(f"{wanted.parameter}: {error.message}", parameter=wanted.parameter) from error
        return to_constraint(answer.constraint)

    async def reset_media_cache(self, seconds: float) -> None:
        """Makes all replicas forget the images, videos and audios that they have prepared.

        Raises:
            QuireError: a replica has not done it.
        """
        await self._replicas.call_each("ResetMediaCache", tokenizer_pb2.ResetMediaCacheRequest(), seconds)

    async def config_json(self) -> bytes:
        """Returns the tokenizer's configuration."""
        return bytes((await self.info()).config_json)

    async def info(self) -> tokenizer_pb2.GetTokenizerInfoResponse:
        """Returns what the service tells about the tokenizer."""
        answer: tokenizer_pb2.GetTokenizerInfoResponse
        answer = await self._replicas.call("GetTokenizerInfo", tokenizer_pb2.GetTokenizerInfoRequest())
        return answer

    async def tokenizer_json(self) -> bytes:
        """Returns the tokenizer itself, in the format of tokenizer.json."""
        request = tokenizer_pb2.GetTokenizerFileRequest()
        async with contextlib.aclosing(self._replicas.stream("GetTokenizerFile", request, _FILE_SECONDS)) as parts:
            return b"".join([part.data async for part in parts])

    async def _converted(self, num_tokens: int, convert: Callable[[], T]) -> T:
        return convert() if num_tokens < _MANY_TOKENS else await self._large_requests.run(convert)
