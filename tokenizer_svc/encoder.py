"""Encodes texts to token ids and block keys without blocking the event loop."""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from quire.block_hash import Content, block_keys
from quire.errors import ContextTooLong, InvalidRequest
from quire.work_pool import WorkPool
from tokenizer_svc.pairs import EncodedPair
from tokenizer_svc.text import TextCodec
from tokenizer_svc.truncation import Truncation

# Up to this size, texts are encoded on the event loop: switching to a thread and back would cost as much.
_INLINE_CHARS = 2000
_INLINE_TOKENS = 500
# Total tokens of all pairs of a request, together with their types.
MAX_PAIRED_TOKENS = 2**21
PIECE_CHARS = 65536
_THREADS = 2
_MAX_WAITING = 256
_MAX_WAITING_LARGE = 4


@dataclass(frozen=True)
class EncodeOptions:
    """How texts are to be encoded."""

    add_special_tokens: bool = False
    block_size: int = 0  # block size for block keys; 0 means no keys
    cache_salt: str = ""
    max_tokens: int = 0  # limit for each text; 0 means no limit
    adapter: str = ""  # revision of the adapter that will compute the blocks
    truncation: Truncation | None = None  # applied to texts that are too long, before max_tokens is checked
    contents: Sequence[Content] = ()  # images, for the block keys
    with_offsets: bool = False  # not with truncation


@dataclass(frozen=True)
class Encoded:
    """An encoded text."""

    token_ids: Sequence[int]
    block_keys: Sequence[int]
    offsets: Sequence[int] = ()  # if wanted: the characters of the text at which each token begins and ends


class Encoder:
    """Encodes in threads, one piece at a time, so that short texts get their turn between the pieces of long ones."""

    def __init__(self, codec: TextCodec) -> None:
        self._codec = codec
        self.pool = WorkPool("texts to encode", _THREADS, _MAX_WAITING)
        # For long texts that cannot be cut: each takes seconds, and hundreds of bytes of memory per character.
        self._uncut_pool = WorkPool("long texts to encode", 1, _MAX_WAITING_LARGE)

    async def encode(self, texts: Sequence[str], options: EncodeOptions) -> list[Encoded]:
        """Encodes texts.

        Raises:
            ContextTooLong: a text has more than `max_tokens`; raised before the whole text is encoded, where that is
                certain.
            Overloaded: too many texts wait.
        """
        found = await self._encode(texts, options)
        if not options.with_offsets:
            return found
        offsets = [await self._offsets(text, options.add_special_tokens) for text in texts]
        return [dataclasses.replace(each, offsets=places) for each, places in zip(found, offsets, strict=True)]

    async def _encode(self, texts: Sequence[str], options: EncodeOptions) -> list[Encoded]:
        if sum(map(len, texts)) <= _INLINE_CHARS:
            return self._encode_short(texts, options)
        found: list[Encoded] = []
        for batch in _batches(texts):
            if len(batch[0]) > PIECE_CHARS:
                found.append(await self._encode_long(batch[0], options))
            else:
                found += await self.pool.run(self._encode_short, batch, options)
        return found

    def finish(self, token_ids: Sequence[int], options: EncodeOptions) -> Encoded:
        """Builds the result for a text whose tokens are already known.

        Raises:
            ContextTooLong: there are more than `max_tokens`.
        """
        return self._finish_long(token_ids, dataclasses.replace(options, add_special_tokens=False))

    async def encode_pairs(
        self, firsts: Sequence[str], seconds: Sequence[str], options: EncodeOptions, most_first: int, most_second: int
    ) -> list[EncodedPair]:
        """Encodes pairs of texts, each pair as one sequence.

        Args:
            firsts: as many as `seconds`, or a single one for all.
            most_first: maximum number of tokens kept of each first text; 0 keeps all.
            most_second: the same for each second text.

        Raises:
            ContextTooLong: a pair has more than `max_tokens`.
            InvalidRequest: the pairs together have more tokens than fit in an answer, or the limit leaves no room.
            Overloaded: too many texts wait.
        """
        # A single text must not exceed a pair's limit, so encoding can stop there.
        most = options.max_tokens if options.truncation is None else 0
        first = await self.encode(firsts, EncodeOptions(max_tokens=most, truncation=_kept(most_first)))
        second = await self.encode(seconds, EncodeOptions(max_tokens=most, truncation=_kept(most_second)))
        if len(first) == 1:
            first = first * len(second)
        _check_pairs(first, second, options)
        if sum(map(_length, first)) + sum(map(_length, second)) <= _INLINE_TOKENS:
            return self._join(first, second, options)
        return await self.pool.run(self._join, first, second, options)

    def _join(self, first: list[Encoded], second: list[Encoded], options: EncodeOptions) -> list[EncodedPair]:
        join = self._codec.pair_frame.join
        pairs = [join(a.token_ids, b.token_ids, options.truncation) for a, b in zip(first, second, strict=True)]
        for pair in pairs:
            _finish(pair.token_ids, options)
        return pairs

    def _encode_short(self, texts: Sequence[str], options: EncodeOptions) -> list[Encoded]:
        special, truncation = options.add_special_tokens, options.truncation
        if truncation is None:
            return [_finish(ids, options) for ids in self._codec.encode(texts, special)]
        encoded = self._codec.encode(texts, add_special_tokens=False)
        return [_finish(self._codec.truncated(ids, truncation, special), options) for ids in encoded]

    async def _encode_long(self, text: str, options: EncodeOptions) -> Encoded:
        truncation = options.truncation
        most = 0 if truncation else options.max_tokens
        least = self._codec.pieces.least_tokens(text)
        if most and least > most:
            raise _too_long(most, f"at least {least}")
        pool = self._pool_of(text)
        token_ids = array("I")
        special = options.add_special_tokens and not truncation
        pieces = self._codec.encode_pieces(text, special, PIECE_CHARS)
        while await pool.run(_add_piece, pieces, token_ids):
            if most and len(token_ids) > most:
                raise _too_long(most, f"more than {len(token_ids) - 1}")
            if truncation and not truncation.keeps_end and len(token_ids) >= truncation.num_tokens:
                break
        return await self.pool.run(self._finish_long, token_ids, options)

    async def _offsets(self, text: str, add_special_tokens: bool) -> Sequence[int]:
        """Encodes a text again, slower, and keeps track of the places."""
        pieces, offsets = self._codec.offsets(text, add_special_tokens, PIECE_CHARS), array("I")
        while await self._pool_of(text).run(_add_piece, pieces, offsets):
            pass
        return offsets

    def _pool_of(self, text: str) -> WorkPool:
        is_short = self._codec.pieces.can_cut or len(text) <= PIECE_CHARS
        return self.pool if is_short else self._uncut_pool

    def _finish_long(self, token_ids: Sequence[int], options: EncodeOptions) -> Encoded:
        if options.truncation:
            token_ids = self._codec.truncated(token_ids, options.truncation, options.add_special_tokens)
        return _finish(token_ids, options)


def _kept(num_tokens: int) -> Truncation | None:
    return Truncation(num_tokens) if num_tokens else None


def _length(encoded: Encoded) -> int:
    return len(encoded.token_ids)


def _check_pairs(first: Sequence[Encoded], second: Sequence[Encoded], options: EncodeOptions) -> None:
    """Checks the total length before the pairs are joined: a query of megabytes would be repeated in each of a thousand
    pairs."""
    most = options.truncation.num_tokens if options.truncation else options.max_tokens or MAX_PAIRED_TOKENS
    total = sum(min(most, _length(a) + _length(b)) for a, b in zip(first, second, strict=True))
    if total > MAX_PAIRED_TOKENS:
        raise InvalidRequest(
            f"The pairs have {total} tokens in total; at most {MAX_PAIRED_TOKENS} are allowed per request: send fewer.",
            parameter="documents",
        )


def _batches(texts: Sequence[str]) -> Iterator[list[str]]:
    """Yields the texts in order, in batches that together are no longer than a piece, or of a single text."""
    batch: list[str] = []
    size = 0
    for text in texts:
        if batch and size + len(text) > PIECE_CHARS:
            yield batch
            batch, size = [], 0
        batch.append(text)
        size += len(text)
    if batch:
        yield batch


def _add_piece(pieces: Iterator[list[int]], found: array[int]) -> bool:
    """Encodes the next piece; returns False when there is none."""
    for piece in pieces:
        found.extend(piece)
        return True
    return False


def _finish(token_ids: Sequence[int], options: EncodeOptions) -> Encoded:
    """Computes the block keys, if they are wanted.

    Raises:
        ContextTooLong: there are more than `max_tokens`.
    """
    if options.max_tokens and len(token_ids) > options.max_tokens:
        raise _too_long(options.max_tokens, str(len(token_ids)))
    if not options.block_size:
        return Encoded(token_ids, ())
    keys = block_keys(token_ids, options.block_size, options.cache_salt, options.contents, options.adapter)
    return Encoded(token_ids, keys)


def _too_long(max_tokens: int, number: str) -> ContextTooLong:
    return ContextTooLong(
        f"This model's maximum context length is {max_tokens} tokens. However, the prompt has {number}: shorten the "
        "prompt.",
        parameter="prompt",
    )
