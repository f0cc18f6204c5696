"""Parts of tokenizer.json, for tokenizers that are described in other ways."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from quire.errors import StartupError

OTHER = "Name the original model's tokenizer with --tokenizer."
BYTE_LEVEL_DECODER = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
SPELLED_SPACES = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
SPACE_IN_FRONT = {"type": "Prepend", "prepend": "▁"}


def whole(model: Mapping[str, Any], added: Sequence[Mapping[str, Any]], **steps: Any) -> dict[str, Any]:
    """A whole tokenizer.json.

    Args:
        added: see `added`.
        steps: normalizer, pre_tokenizer, post_processor and decoder; None where left out.
    """
    absent = dict.fromkeys(("normalizer", "pre_tokenizer", "post_processor", "decoder"))
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": list(added),
        **absent, **steps, "model": dict(model),
    }  # fmt: skip


def added(index: int, text: str, *, special: bool, **properties: bool) -> dict[str, Any]:
    """An added token, which is found in a text before it is split.

    Args:
        properties: lstrip, rstrip, single_word and normalized; False where left out.
    """
    absent = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": index, "content": text, **absent, **properties, "special": special}


def bpe(vocabulary: Mapping[str, int], merges: Sequence[tuple[str, str]], **others: Any) -> dict[str, Any]:
    """A BPE model; `others` are its further fields."""
    return {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
        "vocab": vocabulary, "merges": merges, **others,
    }  # fmt: skip


def pieces_decoder(*, prefix: bool) -> dict[str, Any]:
    """The decoder of SentencePiece-like vocabularies, which spell spaces out and have tokens for bytes.

    Args:
        prefix: whether texts got a space in front.
    """
    decoders: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
    ]  # fmt: skip
    if prefix:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {"type": "Sequence", "decoders": decoders}


def around(
    ids: Mapping[str, int], before: Sequence[str], after: Sequence[str], again: Sequence[str] | None = None
) -> dict[str, Any] | None:
    """The post-processor that adds special tokens before and after a text; None if there are none.

    Args:
        ids: text → id, of at least these tokens.
        again: the tokens before the second text of a pair; None means `before`.

    Raises:
        KeyError: a token has no id.
    """
    if not before and not after:
        return None

    def pattern(sequence: str, number: int, before: Sequence[str]) -> list[dict[str, Any]]:
        tokens = [[{"SpecialToken": {"id": text, "type_id": number}} for text in side] for side in (before, after)]
        return [*tokens[0], {"Sequence": {"id": sequence, "type_id": number}}, *tokens[1]]

    single = pattern("A", 0, before)
    return {
        "type": "TemplateProcessing", "single": single,
        "pair": [*single, *pattern("B", 1, before if again is None else again)],
        "special_tokens": {text: {"id": text, "ids": [ids[text]], "tokens": [text]} for text in (*before, *after)},
    }  # fmt: skip


def build(definition: Mapping[str, Any], place: Path) -> tokenizers.Tokenizer:
    """Builds the tokenizer.

    Args:
        place: what it comes from, for the error.

    Raises:
        StartupError: the parts are inconsistent, such as merges of tokens that do not exist.
    """
    try:
        return tokenizers.Tokenizer.from_str(json.dumps(definition))
    except Exception as error:  # the library raises bare Exceptions
        raise StartupError(f"{place}: its tokenizer cannot be built: {error}. {OTHER}") from error
