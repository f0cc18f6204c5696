"""The tokenizer as the service uses it: for whole texts, single tokens, and growing sequences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from quire.reasoning import ReasoningMarks, ReasoningTracker
from quire.tokenizer.files import TokenizerFiles
from quire.tokenizer.token_bytes import make_token_bytes
from tokenizer_svc.detokenizer import BytesDetokenizer, Detokenizer, WindowDetokenizer
from tokenizer_svc.pairs import PairFrame
from tokenizer_svc.pieces import text_pieces
from tokenizer_svc.sequence import TextSequence
from tokenizer_svc.stop_strings import StopMatcher
from tokenizer_svc.truncation import Truncation, cuts_second_alone, keeps_end

# Number of a history's last tokens that are replayed at first. The characters, in addition to the longest stop string,
# allow for a first character that is cut, and for the effect of earlier tokens on spacing.
_REPLAYED_TOKENS = 64
_REPLAYED_CHARS = 16
_CONTEXT_TOKENS = 6


class TextCodec:
    """Converts text to token ids and back. Thread-safe."""

    def __init__(self, files: TokenizerFiles) -> None:
        self._tokenizer = files.tokenizer
        self._token_bytes = make_token_bytes(files.tokenizer, files.definition)
        added = files.tokenizer.get_added_tokens_decoder()
        self._added_ids = frozenset(added)
        self._special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self.pieces = text_pieces(files.tokenizer, files.definition)
        self._around = self._special_tokens_around()
        self.pair_frame = PairFrame(files.tokenizer, second_alone=cuts_second_alone(files.definition))
        self.keeps_end = keeps_end(files.config)
        self.vocab_size = files.tokenizer.get_vocab_size(with_added_tokens=True)

    def token_id(self, token: str | None) -> int | None:
        """The id of a token; None if `token` is None or not in the vocabulary."""
        return None if token is None else self._tokenizer.token_to_id(token)

    def encode(self, texts: Sequence[str], add_special_tokens: bool) -> list[list[int]]:
        """Token ids of each text. Takes about a millisecond per 5,000 characters and releases the GIL."""
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)
        return [encoding.ids for encoding in encodings]

    def encode_pieces(self, text: str, add_special_tokens: bool, size: int) -> Iterator[list[int]]:
        """Yields the token ids of a long text, about `size` characters at a time if it can be cut."""
        if not self.pieces.can_cut:
            yield from self.encode([text], add_special_tokens)
            return
        before, after = self._around if add_special_tokens else ([], [])
        yield before
        for piece in self.pieces.cut(text, size):
            yield from self.encode([piece], add_special_tokens=False)
        yield after

    def offsets(self, text: str, add_special_tokens: bool, size: int) -> Iterator[list[int]]:
        """Yields where each token that `encode_pieces` yields begins and ends in the text: two numbers of characters
        for each."""
        before, after = self._around if add_special_tokens else ([], [])
        yield [0] * 2 * len(before)
        start = 0
        for piece in self.pieces.cut(text, size):
            (encoding,) = self._tokenizer.encode_batch([piece], add_special_tokens=False)
            yield [start + place for pair in encoding.offsets for place in pair]
            start += len(piece)
        yield [0] * 2 * len(after)

    def truncated(self, token_ids: Sequence[int], truncation: Truncation, add_special_tokens: bool) -> Sequence[int]:
        """Truncates a text's tokens, encoded without special ones; adds the special tokens around them if wanted.

        Raises:
            InvalidRequest: the limit leaves no room for any token.
        """
        before, after = self._around if add_special_tokens else ([], [])
        return [*before, *truncation.cut(token_ids, truncation.room(len(before) + len(after))), *after]

    def _special_tokens_around(self) -> tuple[list[int], list[int]]:
        """The special tokens that the tokenizer adds before and after a text."""
        encoding = self._tokenizer.encode("a", add_special_tokens=True)
        own = [index for index, special in enumerate(encoding.special_tokens_mask) if not special]
        return (encoding.ids[: own[0]], encoding.ids[own[-1] + 1 :]) if own else ([], [])

    def token_strings(self, token_ids: Sequence[int]) -> list[str]:
        """Each token as spelled in the vocabulary."""
        return [self._tokenizer.id_to_token(token_id) or "" for token_id in token_ids]

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool) -> str:
        """The text of a whole sequence; ids beyond the vocabulary have no text. Releases the GIL."""
        return self._tokenizer.decode_batch([list(token_ids)], skip_special_tokens=skip_special_tokens)[0]

    def text_bytes(self, token_ids: Sequence[int]) -> int:
        """Approximate size in bytes of the token ids' text."""
        if self._token_bytes is None:
            return sum(map(len, self.token_strings(token_ids)))
        return sum(map(len, map(self._token_bytes.__getitem__, token_ids)))

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of a single token, which may be part of a character."""
        if self._token_bytes is None:
            return self._tokenizer.decode([token_id], skip_special_tokens=False).encode()
        return self._token_bytes[token_id]

    def open_sequence(
        self,
        *,
        skip_special_tokens: bool = False,
        kept_special_tokens: Sequence[str] = (),
        join_special_tokens: bool = False,
        stop_strings: Sequence[str] = (),
        include_stop_string: bool = False,
        min_tokens: int = 0,
        reasoning: ReasoningMarks | None = None,
        context: Sequence[int] = (),
        history: Sequence[int] = (),
    ) -> TextSequence:
        """Creates the decoding state of a growing sequence.

        The state depends only on the end of the text so far: on what can still become a stop string or a character. So
        only the end of a long history is decoded, enough to yield that much text whatever came before.

        Args:
            kept_special_tokens: kept even if other special tokens are skipped.
            join_special_tokens: omits the space that some vocabularies put between added tokens.
            reasoning: the marks of a model that reasons first; no stop string is matched while it does.
            context: the last tokens of the sequence's prompt.
            history: the sequence's own tokens so far, whose text is not needed again.
        """
        skipped = self._skipped(kept_special_tokens) if skip_special_tokens else frozenset()
        enough = max(map(len, stop_strings), default=0) + _REPLAYED_CHARS
        num_tokens = _REPLAYED_TOKENS
        while True:
            start = max(0, len(history) - num_tokens)
            before = history[max(0, start - _CONTEXT_TOKENS) : start] if start else context
            sequence = TextSequence(
                self._detokenizer(skipped, before, self._added_ids if join_special_tokens else frozenset()),
                StopMatcher(stop_strings, include_stop_string),
                min_tokens,
                ReasoningTracker(reasoning) if reasoning else None,
            )
            if sequence.replay(history, start) >= enough or not start:
                return sequence
            num_tokens *= 4

    def _skipped(self, kept: Sequence[str]) -> frozenset[int]:
        return self._special_ids.difference(map(self._tokenizer.token_to_id, kept)) if kept else self._special_ids

    def _detokenizer(self, skipped: frozenset[int], context: Sequence[int], joined: frozenset[int]) -> Detokenizer:
        if self._token_bytes is None:
            return WindowDetokenizer(self._tokenizer, skipped, context, self.vocab_size, joined)
        return BytesDetokenizer(self._token_bytes, skipped, is_first=not context)
