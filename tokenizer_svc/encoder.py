"""Texts to token ids and the keys of their blocks, beside an event loop that goes on meanwhile."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from quire.block_hash import block_keys
from quire.errors import ContextTooLong
from quire.work_pool import WorkPool
from tokenizer_svc.text import TextCodec

# Less is encoded at once: going to a thread and back costs as much.
_INLINE_CHARS = 2000
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
        return _finish(token_ids, options)

    def _encode_short(self, texts: Sequence[str], options: EncodeOptions) -> list[Encoded]:
        return [_finish(ids, options) for ids in self._codec.encode(texts, options.add_special_tokens)]

    async def _encode_long(self, text: str, options: EncodeOptions) -> Encoded:
        least = self._codec.pieces.least_tokens(text)
        if options.max_tokens and least > options.max_tokens:
            raise _too_long(options.max_tokens, f"at least {least}")
        pool = self.pool if self._codec.pieces.can_cut else self._uncut_pool
        token_ids = array("I")
        pieces = self._codec.encode_pieces(text, options.add_special_tokens, PIECE_CHARS)
        while await pool.run(_add_piece, pieces, token_ids):
            if options.max_tokens and len(token_ids) > options.max_tokens:
                raise _too_long(options.max_tokens, f"more than {len(token_ids) - 1}")
        return await self.pool.run(_finish, token_ids, options)


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
