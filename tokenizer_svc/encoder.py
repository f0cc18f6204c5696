"""Texts to token ids and the keys of their blocks, beside an event loop that goes on meanwhile."""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from quire.block_hash import block_keys
from quire.errors import ContextTooLong, InvalidRequest
from quire.work_pool import WorkPool
from tokenizer_svc.pairs import EncodedPair
from tokenizer_svc.text import TextCodec
from tokenizer_svc.truncation import Truncation

# Less is encoded at once: going to a thread and back costs as much.
_INLINE_CHARS = 2000
_INLINE_TOKENS = 500
# Of all pairs of a request, with their types.
MAX_PAIRED_TOKENS = 2**21
PIECE_CHARS = 65536
_THREADS = 2
_MAX_WAITING = 256
_MAX_WAITING_LARGE = 4


@dataclass(frozen=True)
class EncodeOptions:
    """What is wanted with the texts."""

    add_special_tokens: bool = False
    block_size: int = 0  # of the blocks whose keys are wanted; 0 for none
    cache_salt: str = ""
    max_tokens: int = 0  # of a text; 0 for any number
    adapter: str = ""  # revision of the one that will compute the blocks
    truncation: Truncation | None = None  # of a text that is too long, before max_tokens is looked at


@dataclass(frozen=True)
class Encoded:
    """One text."""

    token_ids: Sequence[int]
    block_keys: Sequence[int]


class Encoder:
    """Encodes in threads, a piece at a time, so that short texts take their turn between the pieces of long ones."""

    def __init__(self, codec: TextCodec) -> None:
        self._codec = codec
        self.pool = WorkPool("texts to encode", _THREADS, _MAX_WAITING)
        # For long texts that cannot be cut: such a one takes seconds, and hundreds of bytes for each character.
        self._uncut_pool = WorkPool("long texts to encode", 1, _MAX_WAITING_LARGE)

    async def encode(self, texts: Sequence[str], options: EncodeOptions) -> list[Encoded]:
        """
        Raises:
            ContextTooLong: a text has more than `max_tokens`; told before it is encoded as a whole, where that is sure.
            Overloaded: too many texts wait.
        """
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
        """The same for a text whose tokens are known.

        Raises:
            ContextTooLong: there are more than `max_tokens`.
        """
        return self._finish_long(token_ids, dataclasses.replace(options, add_special_tokens=False))

    async def encode_pairs(
        self, firsts: Sequence[str], seconds: Sequence[str], options: EncodeOptions, most_first: int, most_second: int
    ) -> list[EncodedPair]:
        """Pairs of texts, each one sequence.

        Args:
            firsts: one for each second text, or one for all.
            most_first: tokens that stay of a first text; 0 for all.
            most_second: the same of a second text.

        Raises:
            ContextTooLong: a pair has more than `max_tokens`.
            InvalidRequest: the pairs have more tokens together than an answer takes, or the limit leaves no room.
            Overloaded: too many texts wait.
        """
        # A text alone may not be longer than a pair, so that no more of it is encoded.
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
        pool = self.pool if self._codec.pieces.can_cut else self._uncut_pool
        token_ids = array("I")
        special = options.add_special_tokens and not truncation
        pieces = self._codec.encode_pieces(text, special, PIECE_CHARS)
        while await pool.run(_add_piece, pieces, token_ids):
            if most and len(token_ids) > most:
                raise _too_long(most, f"more than {len(token_ids) - 1}")
            if truncation and not truncation.keeps_end and len(token_ids) >= truncation.num_tokens:
                break
        return await self.pool.run(self._finish_long, token_ids, options)

    def _finish_long(self, token_ids: Sequence[int], options: EncodeOptions) -> Encoded:
        if options.truncation:
            token_ids = self._codec.truncated(token_ids, options.truncation, options.add_special_tokens)
        return _finish(token_ids, options)


def _kept(num_tokens: int) -> Truncation | None:
    return Truncation(num_tokens) if num_tokens else None


def _length(encoded: Encoded) -> int:
    return len(encoded.token_ids)


def _check_pairs(first: Sequence[Encoded], second: Sequence[Encoded], options: EncodeOptions) -> None:
    """Before they are put together: a query of megabytes stands in each of a thousand pairs."""
    most = options.truncation.num_tokens if options.truncation else options.max_tokens or MAX_PAIRED_TOKENS
    total = sum(min(most, _length(a) + _length(b)) for a, b in zip(first, second, strict=True))
    if total > MAX_PAIRED_TOKENS:
        raise InvalidRequest(
            f"The pairs have {total} tokens together; at most {MAX_PAIRED_TOKENS} go into a request: send fewer.",
            parameter="documents",
        )


def _batches(texts: Sequence[str]) -> Iterator[list[str]]:
    """The texts in order: several that are not longer than a piece together, or one."""
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


def _add_piece(pieces: Iterator[list[int]], token_ids: array[int]) -> bool:
    """Encodes the next piece; False when there is none."""
    for piece in pieces:
        token_ids.extend(piece)
        return True
    return False


def _finish(token_ids: Sequence[int], options: EncodeOptions) -> Encoded:
    """
    Raises:
        ContextTooLong: there are more than `max_tokens`.
    """
    if options.max_tokens and len(token_ids) > options.max_tokens:
        raise _too_long(options.max_tokens, str(len(token_ids)))
    if not options.block_size:
        return Encoded(token_ids, ())
    return Encoded(token_ids, block_keys(token_ids, options.block_size, options.cache_salt, adapter=options.adapter))


def _too_long(max_tokens: int, number: str) -> ContextTooLong:
    return ContextTooLong(
        f"This model's maximum context length is {max_tokens} tokens. However, the prompt has {number}: shorten the "
        "prompt.",
        parameter="prompt",
    )
