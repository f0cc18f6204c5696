"""The files that describe a model's tokenizer."""

from __future__ import annotations

from pathlib import Path

WHOLE = "tokenizer.json"
# In folders without it, by what is looked for first. Each is converted by `quire.tokenizer.conversion`.
RANKS = ("tiktoken.model", "*.tiktoken")
MERGES = "merges.txt"
SENTENCE_PIECES = "tokenizer.model"
WORD_PIECES = "vocab.txt"
VOCABULARIES = (*RANKS, MERGES, SENTENCE_PIECES, WORD_PIECES)


def has_tokenizer(folder: Path) -> bool:
    """Whether the folder has tokenizer.json, or files that are converted to it."""
    return any(any(folder.glob(pattern)) for pattern in (WHOLE, *VOCABULARIES))
