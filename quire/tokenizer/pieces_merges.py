"""Derives BPE merges for vocabularies that give the order in which tokens are formed but not their parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quire.tokenizer.token_bytes import spelling_of

SPACE = "▁"


def merges_of_pieces(vocabulary: Mapping[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """All pairs of tokens of SentencePiece that form a token, ordered by descending score.

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


def merges_of_ranks(words: Mapping[bytes, int]) -> list[tuple[str, str]]:
    """All pairs of byte strings that form one, by its rank, then by their own; as byte-level vocabularies spell them.

    Args:
        words: byte string → rank.
    """
    spelled = {word: spelling_of(word) for word in words}
    found = []
    for word in sorted(words, key=words.__getitem__):
        cuts = [(word[:index], word[index:]) for index in range(1, len(word))]
        pairs = [(left, right) for left, right in cuts if left in words and right in words]
        pairs.sort(key=lambda pair: (words[pair[0]], words[pair[1]]))
        found += [(spelled[left], spelled[right]) for left, right in pairs]
    return found


def with_spelled_spaces(vocabulary: Mapping[str, int]) -> dict[str, int]:
    """The vocabulary with tokens of only spaces spelled as SentencePiece does."""
    return {SPACE * len(text) if text and not text.strip(" ") else text: index for text, index in vocabulary.items()}
