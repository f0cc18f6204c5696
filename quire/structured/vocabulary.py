"""The bytes that a model's tokens stand for, over which grammars are followed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import tokenizers

from quire.errors import FailedPrecondition
from quire.tokenizer.files import TokenizerFiles
from quire.tokenizer.token_bytes import TokenBytes, make_token_bytes


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The bytes of all tokens, and the tokenizer they belong to."""

    tokens: tuple[bytes, ...]  # by id, up to the model's vocabulary size; empty for unused ids
    special_token_ids: frozenset[int]  # never part of a text
    eos_token_ids: tuple[int, ...]  # ids that end a sequence; all count as special, whatever the tokenizer says
    names: dict[str, int] = field(default_factory=dict, repr=False)  # names of special tokens, as in templates → ids
    tokenizer: tokenizers.Tokenizer | None = field(default=None, repr=False)

    @property
    def size(self) -> int:
        """Number of ids."""
        return len(self.tokens)

    def encode(self, text: bytes) -> list[int]:
        """Tokens that spell these bytes: as the tokenizer encodes them if it can, otherwise the longest that fit."""
        if self.tokenizer is not None:
            try:
                token_ids: list[int] = self.tokenizer.encode(text.decode(), add_special_tokens=False).ids
            except UnicodeDecodeError:
                token_ids = []
            spelled = b"".join(self.tokens[token_id] for token_id in token_ids)
            if spelled == text and self.special_token_ids.isdisjoint(token_ids):
                return token_ids
        return self._encode_greedily(text)

    def _encode_greedily(self, text: bytes) -> list[int]:
        found, at = [], 0
        while at < len(text):
            ends = range(min(len(text), at + self._longest), at, -1)
            end = next((end for end in ends if text[at:end] in self._ids), None)
            if end is None:  # no token for this byte: the rest cannot be spelled
                break
            found.append(self._ids[text[at:end]])
            at = end
        return found

    @cached_property
    def _ids(self) -> dict[bytes, int]:
        """Bytes → the lowest id of a token with these bytes."""
        spelled = reversed([*enumerate(self.tokens)])
        return {token: token_id for token_id, token in spelled if token and token_id not in self.special_token_ids}

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self._ids), default=0)


def token_table(files: TokenizerFiles) -> TokenBytes:
    """The bytes of each token.

    Raises:
        FailedPrecondition: a token's text depends on its neighbors, so that no grammar can be followed.
    """
    table = make_token_bytes(files.tokenizer, files.definition)
    if table is None:
        kind = (files.definition.get("decoder") or {}).get("type")
        raise FailedPrecondition(
            f"This model's tokenizer joins tokens into text in a way ({kind}) that does not allow output to be "
            "constrained token by token: structured output needs a byte-level or SentencePiece-like tokenizer."
        )
    return table


def make_vocabulary(files: TokenizerFiles, vocab_size: int = 0, eos_token_ids: Sequence[int] = ()) -> Vocabulary:
    """Builds the vocabulary of a model's tokenizer; takes about a second for 150,000 tokens.

    Args:
        vocab_size: vocabulary size of the model, which may exceed the tokenizer's; 0 means the tokenizer's own.
        eos_token_ids: ids that end a sequence; empty means the tokenizer's own end-of-sequence token.

    Raises:
        FailedPrecondition: a token's text depends on its neighbors, so that no grammar can be followed.
    """
    table = token_table(files)
    size = vocab_size or files.tokenizer.get_vocab_size(with_added_tokens=True)
    added = {token_id: token for token_id, token in files.tokenizer.get_added_tokens_decoder().items()
             if token.special and token_id < size}  # fmt: skip
    own = files.tokenizer.token_to_id(files.special_tokens.get("eos_token", ""))
    ending = tuple(eos_token_ids) or (() if own is None or own >= size else (own,))
    return Vocabulary(
        tuple(table[token_id] for token_id in range(size)),
        frozenset(added) | frozenset(ending),
        ending,
        {token.content: token_id for token_id, token in added.items()},
        files.tokenizer,
    )
