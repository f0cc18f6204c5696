"""TokenizerService: validates requests and maps them onto the codec and the renderer."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, ParamSpec, TypeVar

import grpc
import msgspec
from google.protobuf.message import Message

from quire.bounds import BLOCK_SIZE_BOUND, MAX_CACHE_SALT_LENGTH, MAX_REVISION_LENGTH
from quire.errors import FailedPrecondition, InvalidRequest
from quire.images import EMBEDS, GRID, contents_of
from quire.media import MediaKind
from quire.options.multimodal import check_media_io_kwargs
from quire.options.tokenizer import TokenizerOptions
from quire.rpc.constraint import from_constraint, to_asked
from quire.rpc.images import from_images
from quire.rpc.settings import HEARTBEAT_SECONDS
from quire.tokenizer.files import TokenizerFiles
from quire.v1 import common_pb2, tokenizer_pb2, tokenizer_pb2_grpc
from tokenizer_svc.constraint_compiler import ConstraintCompiler
from tokenizer_svc.encoder import Encoded, EncodeOptions, Encoder
from tokenizer_svc.fill_in_middle import with_hole
from tokenizer_svc.media import MediaPreparer, MediaSettings, Medium, PreparedMedium
from tokenizer_svc.metrics import TokenizerMetrics
from tokenizer_svc.pairs import EncodedPair
from tokenizer_svc.rendered import Rendered
from tokenizer_svc.renderer import ChatRenderer
from tokenizer_svc.session import DetokenizeSession
from tokenizer_svc.text import TextCodec
from tokenizer_svc.truncation import Truncation

MAX_TEXTS = 1024
_MAX_ANSWER_BYTES = 16 * 2**20  # apart from images
_FILE_PART_BYTES = 2**20
# Up to this many tokens are decoded, or put into a message, on the event loop: switching to a thread and back would
# cost as much.
_INLINE_TOKENS = 500
_FILLED_AT_ONCE = 100_000

P = ParamSpec("P")
T = TypeVar("T")
M = TypeVar("M", bound=Message)

# Both have the same fields for how to encode.
_EncodeOptions = tokenizer_pb2.EncodeRequest | tokenizer_pb2.RenderChatRequest


class TokenizerServicer(tokenizer_pb2_grpc.TokenizerServiceServicer):
    """Implements the calls of tokenizer.proto."""

    def __init__(
        self,
        name: str,
        files: TokenizerFiles,
        renderer: ChatRenderer,
        compiler: ConstraintCompiler,
        media: MediaPreparer,
        options: TokenizerOptions,
        metrics: TokenizerMetrics,
    ) -> None:
        """
        Args:
            name: the tokenizer's folder or hub name, for GetTokenizerInfo.
        """
        self._name = name
        self._files = files
        self._codec = TextCodec(files)
        self._renderer = renderer
        self._compiler = compiler
        self._media = media
        self._options = options
        self._metrics = metrics
        self._encoder = Encoder(self._codec)
        self._draining = False
        self.sessions: set[DetokenizeSession] = set()

    async def Encode(
        self, request: tokenizer_pb2.EncodeRequest, context: grpc.aio.ServicerContext
    ) -> tokenizer_pb2.EncodeResponse:
        if len(request.texts) > MAX_TEXTS:
            raise InvalidRequest(
                f"{len(request.texts)} texts are too many; at most {MAX_TEXTS} are allowed.", parameter="texts"
            )
        texts: Sequence[str] = request.texts
        if request.HasField("suffix"):
            texts = [with_hole(self._files.tokenizer, text, request.suffix) for text in texts]
        encoded = await self._encode(texts, request)
        return await self._beside(encoded, _encode_response, encoded)

    async def EncodePairs(
        self, request: tokenizer_pb2.EncodePairsRequest, context: grpc.aio.ServicerContext
    ) -> tokenizer_pb2.EncodeResponse:
        firsts, seconds = request.first_texts, request.second_texts
        if len(seconds) > MAX_TEXTS:
            raise InvalidRequest(
                f"{len(seconds)} pairs are too many; at most {MAX_TEXTS} are allowed.", parameter="texts"
            )
        if len(firsts) != 1 and len(firsts) != len(seconds):
            raise InvalidRequest(
                f"{len(firsts)} first texts cannot be paired with {len(seconds)} second texts: send one first text, "
                "or as many first texts as second ones.",
                parameter="texts",
            )
        self._check_chars([*firsts, *seconds])
        options = EncodeOptions(max_tokens=request.max_tokens, truncation=self._truncation(request))
        if request.chat_template or self._renderer.has_score_template:
            encoded = await self._encoder.encode(await self._render_pairs(request), options)
            return await self._beside(encoded, _encode_response, encoded)
        if request.template_kwargs_json:
            raise InvalidRequest(
                "instruction and chat_template_kwargs need a score template, which this model does not have: leave "
                "them out, or start the server with one (--chat-template).",
                parameter="instruction",
            )
        pairs = await self._encoder.encode_pairs(
            firsts, seconds, options, request.max_first_tokens, request.max_second_tokens
        )
        self._metrics.encoded_tokens.inc(sum(len(pair.token_ids) for pair in pairs))
        return await self._encoder.pool.run(_pairs_response, pairs)

    async def Decode(
        self, request: tokenizer_pb2.DecodeRequest, context: grpc.aio.ServicerContext
    ) -> tokenizer_pb2.DecodeResponse:
        if len(request.token_ids) <= _INLINE_TOKENS:
            return self._decode(request)
        return _fitting(await self._encoder.pool.run(self._decode, request), "token_ids")

    async def RenderChat(
        self, request: tokenizer_pb2.RenderChatRequest, context: grpc.aio.ServicerContext
    ) -> tokenizer_pb2.RenderChatResponse:
        if request.images or request.videos or request.audios:
            return await self._render_with_media(request)
        rendered = await self._render(request)
        if rendered.token_ids is None:
            encoded = await self._encode([rendered.text], request)
        else:
            encoded = [self._encoder.finish(rendered.token_ids, self._encode_options(request))]
        return await self._beside(encoded, _render_response, rendered.text, encoded[0])

    async def _render_with_media(self, request: tokenizer_pb2.RenderChatRequest) -> tokenizer_pb2.RenderChatResponse:
        """
        Raises:
            InvalidRequest: the images, videos and audios cannot be prepared, or the template does not place them.
        """
        if request.HasField("truncation"):
            raise InvalidRequest(
                "A prompt with images, videos or audio cannot be truncated: leave truncate_prompt_tokens out.",
                parameter="truncate_prompt_tokens",
            )
        settings = MediaSettings(
            _parse(request.image_processor_kwargs_json or b"{}", "mm_processor_kwargs", dict),
            _reading(request.media_io_kwargs_json),
        )
        media = _images_of(request)
        media += [Medium(MediaKind.VIDEO, tuple(video.files)) for video in request.videos]
        media += [Medium(MediaKind.AUDIO, (file,)) for file in request.audios]
        prepared = await self._media.prepare(media, settings)
        rendered = await self._render(
            request, placeholders=self._media.wrapped, interleaves=self._options.images.interleave_mm_strings
        )
        token_ids, placed = await self._with_media(rendered, prepared, self._encode_options(request))
        images = self._media.place(token_ids, placed)
        options = dataclasses.replace(self._encode_options(request), contents=contents_of(images))
        finished = self._encoder.finish(token_ids, options)
        seconds = sum(each.seconds for each in prepared)
        named = from_images(image.named() for image in images)
        return await self._beside([finished], _render_response, rendered.text, finished, named, seconds)

    async def _with_media(
        self, rendered: Rendered, media: Sequence[PreparedMedium], options: EncodeOptions
    ) -> tuple[Sequence[int], Sequence[PreparedMedium]]:
        """The tokens of a conversation, and its images, videos and audios in the order of their places.

        Raises:
            InvalidRequest: the template does not place them, or the text is too long.
        """
        options = dataclasses.replace(options, block_size=0, with_offsets=False)
        if rendered.token_ids is None:
            text, media = self._media.insert(rendered.text, media)
            self._check_chars([text])
            (encoded,) = await self._encoder.encode([text], options)
            self._metrics.encoded_tokens.inc(len(encoded.token_ids))
            return encoded.token_ids, media
        media = self._media.ordered(rendered.token_ids, media)
        options = dataclasses.replace(options, add_special_tokens=False)
        inserted = await self._encoder.encode([each.text for each in media], options)
        return self._media.replaced(rendered.token_ids, [each.token_ids for each in inserted]), media

    async def DetokenizeSession(
        self,
        request_iterator: AsyncIterator[tokenizer_pb2.DetokenizeSessionRequest],
        context: grpc.aio.ServicerContext,
    ) -> None:
        session, writing = DetokenizeSession(self._codec), asyncio.Lock()

        async def write(answer: tokenizer_pb2.DetokenizeSessionResponse) -> None:
            answer.draining = self._draining
            async with writing:  # gRPC allows one write of a call at a time
                await context.write(answer)

        async def beat() -> None:
            while True:
                await write(tokenizer_pb2.DetokenizeSessionResponse())
                await asyncio.sleep(HEARTBEAT_SECONDS)

        self.sessions.add(session)
        beating = asyncio.create_task(beat())
        try:
            async for frame in request_iterator:
                self._metrics.detokenized(frame)
                await write(session.answer(frame))
        finally:
            beating.cancel()
            self.sessions.discard(session)
            await asyncio.gather(beating, return_exceptions=True)

    async def CompileConstraint(
        self, request: tokenizer_pb2.CompileConstraintRequest, context: grpc.aio.ServicerContext
    ) -> tokenizer_pb2.CompileConstraintResponse:
        constraint = await self._compiler.compile(to_asked(request))
        return tokenizer_pb2.CompileConstraintResponse(constraint=from_constraint(constraint))

    async def SplitAudio(self, request: tokenizer_pb2.SplitAudioRequest, context: grpc.aio.ServicerContext) -> None:
        async with self._media.split(request.file) as pieces:
            for piece in pieces:
                await context.write(tokenizer_pb2.SplitAudioResponse(**vars(piece)))

    async def PrepareLiveAudio(
        self, request: tokenizer_pb2.PrepareLiveAudioRequest, context: grpc.aio.ServicerContext
    ) -> tokenizer_pb2.PrepareLiveAudioResponse:
        part = await self._media.prepare_part(request.samples, begins=request.begins, ends=request.ends)
        (audio,) = from_images([part.audio])
        return tokenizer_pb2.PrepareLiveAudioResponse(audio=audio, num_used=part.num_used)

    async def ResetMediaCache(
        self, request: tokenizer_pb2.ResetMediaCacheRequest, context: grpc.aio.ServicerContext
    ) -> tokenizer_pb2.ResetMediaCacheResponse:
        self._media.reset_cache()
        return tokenizer_pb2.ResetMediaCacheResponse()

    async def GetTokenizerInfo(
        self, request: tokenizer_pb2.GetTokenizerInfoRequest, context: grpc.aio.ServicerContext
    ) -> tokenizer_pb2.GetTokenizerInfoResponse:
        eos = self._codec.token_id(self._files.special_tokens.get("eos_token"))
        return tokenizer_pb2.GetTokenizerInfoResponse(
            tokenizer=self._name,
            vocab_size=self._codec.vocab_size,
            eos_token_ids=[] if eos is None else [eos],
            bos_token_id=self._codec.token_id(self._files.special_tokens.get("bos_token")),
            has_chat_template=self._renderer.has_template,
            config_json=json.dumps(self._config()).encode(),
        )

    async def GetTokenizerFile(
        self, request: tokenizer_pb2.GetTokenizerFileRequest, context: grpc.aio.ServicerContext
    ) -> None:
        data = await asyncio.to_thread(msgspec.json.encode, self._files.definition)  # json would stop all threads
        for start in range(0, len(data), _FILE_PART_BYTES):
            await context.write(tokenizer_pb2.GetTokenizerFileResponse(data=data[start : start + _FILE_PART_BYTES]))

    def _config(self) -> dict[str, Any]:
        """The tokenizer's configuration, with the chat template in use."""
        template = {"chat_template": self._renderer.template} if self._renderer.template else {}
        return {"tokenizer_class": "PreTrainedTokenizerFast", **self._files.config, **template}

    async def drain(self) -> None:
        """Returns once no sequence is open; callers are told to open theirs elsewhere."""
        self._draining = True
        while any(session.num_streams for session in self.sessions):
            await asyncio.sleep(0.02)

    async def _render_pairs(self, request: tokenizer_pb2.EncodePairsRequest) -> list[str]:
        """Renders the scoring prompt of each pair."""
        self._check_template(request.chat_template)
        if request.max_first_tokens or request.max_second_tokens:
            raise InvalidRequest(
                "This model's pairs are rendered with a template, so max_tokens_per_query and max_tokens_per_doc "
                "cannot be applied: leave them out, or truncate whole prompts with truncate_prompt_tokens.",
                parameter="max_tokens_per_doc" if request.max_second_tokens else "max_tokens_per_query",
            )
        firsts, seconds = request.first_texts, request.second_texts
        pairs = [(firsts[index if len(firsts) > 1 else 0], second) for index, second in enumerate(seconds)]
        variables = _parse(request.template_kwargs_json or b"{}", "chat_template_kwargs", dict)
        self._metrics.rendered_conversations.inc(len(pairs))
        return await self._renderer.render_pairs(pairs, variables, request.chat_template or None)

    def _check_template(self, template: str) -> None:
        """Checks whether the request may bring a template.

        Raises:
            InvalidRequest: the request brings one, which the server does not allow.
        """
        if template and not self._options.trust_request_chat_template:
            raise InvalidRequest(
                "This server does not accept chat templates from requests; start it with "
                "--trust-request-chat-template.",
                parameter="chat_template",
            )

    async def _render(self, request: tokenizer_pb2.RenderChatRequest, **of_media: Any) -> Rendered:
        """
        Args:
            of_media: see ChatTemplates.render.
        """
        self._check_template(request.chat_template)
        if request.form != tokenizer_pb2.CONVERSATION_FORM_CHAT:
            of_media["separator"] = ""  # as in vLLM
        if request.form == tokenizer_pb2.CONVERSATION_FORM_CONTENTS:
            return await self._renderer.join(request.messages_json, **of_media)
        is_pair = request.form == tokenizer_pb2.CONVERSATION_FORM_PAIR
        if is_pair and not (request.chat_template or self._renderer.has_score_template):
            raise InvalidRequest(
                "A query or a document with images, videos or audio needs a score template, which this model does not "
                "have: start the server with one (--chat-template).",
                parameter="messages",
            )
        if not request.chat_template and not self._renderer.has_template:
            raise FailedPrecondition(
                "The model has no chat template: send text instead of messages (to /v1/completions if the model "
                "generates text), or start the server with --chat-template."
            )
        add_prompt = request.add_generation_prompt if request.HasField("add_generation_prompt") else True
        rendered = await self._renderer.render(
            messages_json=request.messages_json,
            tools=_parse(request.tools_json or b"null", "tools", (list, type(None))),
            add_generation_prompt=add_prompt and not request.continue_final_message,
            continue_final_message=request.continue_final_message,
            variables=_parse(request.template_kwargs_json or b"{}", "chat_template_kwargs", dict),
            template=request.chat_template or None,
            default_effort=request.default_reasoning_effort,
            **of_media,
        )
        self._metrics.rendered_conversations.inc()
        return rendered

    async def _encode(self, texts: Sequence[str], wanted: _EncodeOptions) -> list[Encoded]:
        self._check_chars(texts)
        encoded = await self._encoder.encode(texts, self._encode_options(wanted))
        self._metrics.encoded_tokens.inc(_num_tokens(encoded))
        return encoded

    def _check_chars(self, texts: Sequence[str]) -> None:
        num_chars = sum(map(len, texts))
        if num_chars > self._options.max_prompt_chars:
            raise InvalidRequest(
                f"The text has {num_chars} characters; this server encodes at most {self._options.max_prompt_chars} "
                "(--max-prompt-chars).",
                parameter="prompt",
            )

    def _encode_options(self, wanted: _EncodeOptions) -> EncodeOptions:
        """
        Raises:
            InvalidRequest: a field is out of bounds.
        """
        _check_block_keys(wanted)
        if wanted.return_token_offsets and wanted.HasField("truncation"):
            raise InvalidRequest("Truncated texts have no offsets.", parameter="return_token_offsets")
        return EncodeOptions(
            wanted.add_special_tokens, wanted.block_size, wanted.cache_salt, wanted.max_tokens, wanted.adapter,
            self._truncation(wanted), with_offsets=wanted.return_token_offsets,
        )  # fmt: skip

    def _truncation(self, wanted: _EncodeOptions | tokenizer_pb2.EncodePairsRequest) -> Truncation | None:
        if not wanted.HasField("truncation"):
            return None
        asked = wanted.truncation
        keeps_end = asked.keeps_end if asked.HasField("keeps_end") else self._codec.keeps_end
        return Truncation(asked.num_tokens, keeps_end)

    async def _beside(self, encoded: Sequence[Encoded], make: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs `make` to build the answer from encoded texts: in a thread if they are large."""
        if _num_tokens(encoded) <= _INLINE_TOKENS:
            return make(*args, **kwargs)
        return await self._encoder.pool.run(make, *args, **kwargs)

    def _decode(self, request: tokenizer_pb2.DecodeRequest) -> tokenizer_pb2.DecodeResponse:
        size = self._codec.text_bytes(request.token_ids)
        _check_size(size * (2 if request.return_token_bytes else 1), "token_ids")
        answer = tokenizer_pb2.DecodeResponse(text=self._codec.decode(request.token_ids, request.skip_special_tokens))
        if request.return_token_bytes:
            answer.token_bytes.extend(map(self._codec.token_bytes, request.token_ids))
        if request.return_token_strings:
            answer.token_strings.extend(self._codec.token_strings(request.token_ids))
        return answer


def _images_of(request: tokenizer_pb2.RenderChatRequest) -> list[Medium]:
    """The images of a request, of which some come as embeddings.

    Raises:
        InvalidRequest: embeddings are not of one of its images, or have other tensors than they may.
    """
    media = [Medium(MediaKind.IMAGE, (file,)) for file in request.images]
    for each in request.image_embeds:
        tensors = dict(sorted(each.tensors.items()))
        if each.index >= len(media) or EMBEDS not in tensors or tensors.keys() - {EMBEDS, GRID}:
            raise InvalidRequest(
                f"image_embeds: image {each.index} of {len(media)} has the tensors {[name[:50] for name in tensors]}; "
                f"it must be one of the images, with {EMBEDS} and maybe {GRID}.",
                parameter="messages",
            )
        media[each.index] = Medium(MediaKind.IMAGE, (*tensors.values(),), (*tensors,))
    return media


def _reading(media_io_kwargs: bytes) -> dict[str, Any]:
    """
    Raises:
        InvalidRequest: it is not a JSON object of known settings.
    """
    found: dict[str, Any] = _parse(media_io_kwargs or b"{}", "media_io_kwargs", dict)
    try:
        check_media_io_kwargs(found)
    except ValueError as error:
        raise InvalidRequest(f"media_io_kwargs: {error}", parameter="media_io_kwargs") from error
    return found


def _num_tokens(encoded: Sequence[Encoded]) -> int:
    return sum(len(each.token_ids) for each in encoded)


def _encode_response(encoded: Sequence[Encoded]) -> tokenizer_pb2.EncodeResponse:
    answer = tokenizer_pb2.EncodeResponse()
    for each in encoded:
        _fill(answer.sequences.add(), each)
    return _fitting(answer, "texts")


def _pairs_response(pairs: Sequence[EncodedPair]) -> tokenizer_pb2.EncodeResponse:
    sequences = (
        tokenizer_pb2.TokenSequence(token_ids=pair.token_ids, token_type_ids=pair.token_type_ids) for pair in pairs
    )
    return _fitting(tokenizer_pb2.EncodeResponse(sequences=sequences), "texts")


def _render_response(
    text: str, encoded: Encoded, images: Sequence[common_pb2.Image] = (), audio_seconds: float = 0.0
) -> tokenizer_pb2.RenderChatResponse:
    answer = tokenizer_pb2.RenderChatResponse(text=text, audio_seconds=audio_seconds)
    _fill(answer.sequence, encoded)
    _fitting(answer, "messages")
    answer.images.extend(images)  # whose size has a limit of its own
    return answer


def _fill(sequence: tokenizer_pb2.TokenSequence, encoded: Encoded) -> None:
    """Copies in slices, because each call holds the GIL."""
    for start in range(0, len(encoded.token_ids), _FILLED_AT_ONCE):
        sequence.token_ids.extend(encoded.token_ids[start : start + _FILLED_AT_ONCE])
    sequence.block_keys.extend(encoded.block_keys)
    sequence.token_offsets.extend(encoded.offsets)


def _check_block_keys(wanted: _EncodeOptions) -> None:
    if wanted.block_size:
        BLOCK_SIZE_BOUND.check("block_size", wanted.block_size)
    if len(wanted.cache_salt) > MAX_CACHE_SALT_LENGTH:
        raise InvalidRequest(
            f"cache_salt has {len(wanted.cache_salt)} characters; at most {MAX_CACHE_SALT_LENGTH} are allowed.",
            parameter="cache_salt",
        )
    if len(wanted.adapter) > MAX_REVISION_LENGTH:
        raise InvalidRequest(f"adapter has more than {MAX_REVISION_LENGTH} characters.", parameter="adapter")


def _parse(text: bytes, parameter: str, kind: type | tuple[type, ...]) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{parameter} is not valid JSON: {error}", parameter=parameter) from error
    if not isinstance(value, kind):
        raise InvalidRequest(f"{parameter} has the wrong JSON type.", parameter=parameter)
    return value


def _fitting(answer: M, parameter: str) -> M:
    """Returns the answer, if it fits in a message.

    Raises:
        InvalidRequest: the answer is larger than a message may be.
    """
    _check_size(answer.ByteSize(), parameter)
    return answer


def _check_size(num_bytes: int, parameter: str) -> None:
    if num_bytes > _MAX_ANSWER_BYTES:
        raise InvalidRequest(
            f"The answer would have {num_bytes} bytes; at most {_MAX_ANSWER_BYTES} are allowed: ask for less at a "
            "time.",
            parameter=parameter,
        )
