"""Derives BPE merges for a SentencePiece vocabulary, which gives the order in which tokens are formed but not their
parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

SPACE = "▁"


def merges_of_pieces(vocabulary: Mapping[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """All pairs of tokens that form a token, ordered by descending score.

    Args:
        scores: score of each token, by id.
    """
    found = []
    for text, index in vocabulary.items():
        pairs = [(text[:cut], text[cut:]) for cut in range(1, len(text))]
        known = [pair for pair in pairs if pair[0] in vocabulary and pair[1] in vocabulary]
        known.sort(key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]))
        found += [(scores[index], *pair) for pair in known]
    found.sort(key=lambda merge: (merge[0], len(merge[1]), len(merge[2])), reverse=True)
    return [(left, right) for _, left, right in found]


def with_spelled_spaces(vocabulary: Mapping[str, int]) -> dict[str, int]:
    """The vocabulary with tokens of only spaces spelled as SentencePiece does."""
    return {SPACE * len(text) if text and not text.strip(" ") else text: index for text, index in vocabulary.items()}
