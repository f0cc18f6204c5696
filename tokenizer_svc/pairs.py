"""Encodes pairs of texts as one token sequence by the tokenizer's own rules: [CLS] first [SEP] second [SEP]."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tokenizers

from tokenizer_svc.truncation import Truncation, pair_lengths


@dataclass(frozen=True)
class EncodedPair:
    """An encoded pair."""

    token_ids: Sequence[int]
    token_type_ids: Sequence[int]  # empty if all are 0


@dataclass(frozen=True)
class _Special:
    """Special tokens before, between or after the texts, with their types."""

    token_ids: tuple[int, ...] = ()
    types: tuple[int, ...] = ()

    @classmethod
    def of(cls, tokens: Sequence[tuple[int, int]]) -> _Special:
        """Creates it from (id, type) pairs."""
        return cls(tuple(token_id for token_id, _ in tokens), tuple(kind for _, kind in tokens))


class PairFrame:
    """The special tokens around two texts. Each text is encoded on its own, so that a query is encoded only once."""

    def __init__(self, tokenizer: tokenizers.Tokenizer, *, second_alone: bool) -> None:
        """
        Args:
            second_alone: whether truncation cuts only the second text.
        """
        self._second_alone = second_alone
        example = tokenizer.encode("a", "b", add_special_tokens=True)
        first, second = ([index for index, text in enumerate(example.sequence_ids) if text == n] for n in (0, 1))
        tokens = list(zip(example.ids, example.type_ids, strict=True))
        self._before = self._between = self._after = _Special()
        if first and second:  # both are in the vocabulary
            self._before = _Special.of(tokens[: first[0]])
            self._between = _Special.of(tokens[first[-1] + 1 : second[0]])
            self._after = _Special.of(tokens[second[-1] + 1 :])
        self._first_type, self._second_type = (example.type_ids[own[0]] if own else 0 for own in (first, second))
        self._has_types = any(example.type_ids)

    @property
    def num_special(self) -> int:
        """Number of special tokens in a pair."""
        return sum(len(special.token_ids) for special in (self._before, self._between, self._after))

    def join(self, first: Sequence[int], second: Sequence[int], truncation: Truncation | None) -> EncodedPair:
        """Joins two texts' tokens into one sequence.

        Raises:
            InvalidRequest: the limit leaves no room for the texts.
        """
        if truncation is not None:
            room = truncation.room(self.num_special)
            kept = pair_lengths(len(first), len(second), room, second_alone=self._second_alone)
            first, second = truncation.cut(first, kept[0]), truncation.cut(second, kept[1])
        before, between, after = self._before, self._between, self._after
        token_ids = [*before.token_ids, *first, *between.token_ids, *second, *after.token_ids]
        if not self._has_types:
            return EncodedPair(token_ids, ())
        types = [*before.types, *[self._first_type] * len(first), *between.types]
        return EncodedPair(token_ids, [*types, *[self._second_type] * len(second), *after.types])
