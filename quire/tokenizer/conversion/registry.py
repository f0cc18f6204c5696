"""Chooses the conversion by the files in a folder."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from quire.errors import StartupError
from quire.tokenizer.conversion.byte_level import convert_merges
from quire.tokenizer.conversion.kept import kept
from quire.tokenizer.conversion.ranks import convert_ranks
from quire.tokenizer.conversion.sentence_pieces import convert_pieces
from quire.tokenizer.conversion.source import MAKE_IT, Converted, Source
from quire.tokenizer.conversion.word_pieces import convert_words
from quire.tokenizer.vocabulary_files import MERGES, RANKS, SENTENCE_PIECES, VOCABULARIES, WHOLE, WORD_PIECES

_CONVERSIONS = {
    **dict.fromkeys(RANKS, convert_ranks), MERGES: convert_merges, SENTENCE_PIECES: convert_pieces,
    WORD_PIECES: convert_words,
}  # fmt: skip


def convert(folder: Path, config: Mapping[str, Any]) -> Converted:
    """Converts the tokenizer of a folder without tokenizer.json.

    Args:
        config: tokenizer_config.json, over special_tokens_map.json.

    Raises:
        StartupError: the folder has no files that can be converted, or they cannot be read.
        AttributeError, KeyError, TypeError, ValueError: the configuration is malformed.
    """
    for pattern in VOCABULARIES:
        if any(folder.glob(pattern)):
            return kept(folder, config, partial(_CONVERSIONS[pattern], Source(folder, config)))
    raise StartupError(
        f"No {WHOLE} in {folder}, and no file that can be read in its place ({', '.join(VOCABULARIES)}). {MAKE_IT}"
    )
