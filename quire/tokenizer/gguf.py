"""Converts the tokenizer in a GGUF file to the form of tokenizer.json."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from quire.errors import StartupError
from quire.gguf.files import Gguf, read_gguf
from quire.gguf.tokens import TokenKind, token_kinds
from quire.tokenizer.definition import (
    BYTE_LEVEL_DECODER,
    OTHER,
    SPACE_IN_FRONT,
    SPELLED_SPACES,
    added,
    around,
    bpe,
    pieces_decoder,
    whole,
)
from quire.tokenizer.gguf_rules import BYTE_LEVEL, PreTokenizer, byte_level_steps
from quire.tokenizer.pieces_merges import merges_of_pieces, with_spelled_spaces

_NAMED = {
    "bos_token": "bos_token_id", "eos_token": "eos_token_id", "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id", "sep_token": "seperator_token_id", "mask_token": "mask_token_id",
}  # fmt: skip
_ADDED = (TokenKind.CONTROL, TokenKind.USER_DEFINED, TokenKind.UNKNOWN)


def gguf_tokenizer(file: Path) -> tuple[dict[str, Any], dict[str, str], dict[str, str]]:
    """Returns (tokenizer.json, special tokens by name, chat templates by name).

    Raises:
        StartupError: the file is broken, or its kind of tokenizer is unknown.
    """
    model = read_gguf(file)
    kind = model.text("tokenizer.ggml.model")
    convert = {"gpt2": _byte_level, "llama": _pieces, "gemma4": _gemma4}.get(kind)
    if not model.texts("tokenizer.ggml.tokens") or convert is None:
        raise StartupError(
            f"{file} has a tokenizer of the kind {kind or 'none'!r}, which is not supported; gpt2, llama and gemma4 "
            f"are. {OTHER}"
        )
    definition = convert(model)
    return definition, _special_tokens(model), _chat_templates(model)


def _byte_level(model: Gguf) -> dict[str, Any]:
    name = model.text("tokenizer.ggml.pre")
    if name not in BYTE_LEVEL:
        raise StartupError(
            f"{model.files[0]}: its tokenizer splits texts by the rules {name or 'none'!r}, which are not supported. "
            + OTHER
        )
    rules = BYTE_LEVEL[name]
    return _definition(
        model, bpe(_vocabulary(model), _merges(model), ignore_merges=rules.ignore_merges),
        normalizer={"type": "NFC"} if rules.composes else None, pre_tokenizer=byte_level_steps(rules),
        decoder=BYTE_LEVEL_DECODER, post_processor=_around(model, rules),
    )  # fmt: skip


def _pieces(model: Gguf) -> dict[str, Any]:
    """A tokenizer of SentencePiece: the merges are those that lead to the tokens with the highest scores first."""
    is_gemma = model.text("general.architecture").startswith("gemma")
    tokens = model.texts("tokenizer.ggml.tokens")
    vocabulary = with_spelled_spaces(_vocabulary(model)) if is_gemma else _vocabulary(model)
    scores = [-float(index) for index in range(len(tokens))] if is_gemma else _scores(model)
    merges = _merges(model) or merges_of_pieces(vocabulary, scores)
    return _spelled(model, vocabulary, merges, prefix=model.metadata.get("tokenizer.ggml.add_space_prefix", True))


def _gemma4(model: Gguf) -> dict[str, Any]:
    """Gemma 4's tokenizer, whose scores mean nothing. As in its tokenizer.json, texts are not split before merging."""
    merges = _merges(model)
    if not merges:
        raise StartupError(f"{model.files[0]}: tokenizer.ggml.merges is missing, which the kind gemma4 needs. {OTHER}")
    prefix = model.metadata.get("tokenizer.ggml.add_space_prefix", False)
    return _spelled(model, _vocabulary(model), merges, prefix=prefix)


def _merges(model: Gguf) -> list[tuple[str, str]]:
    """
    Raises:
        StartupError: a merge is not of two tokens.
    """
    merges = [merge.split(" ") for merge in model.texts("tokenizer.ggml.merges")]
    if any(len(pair) != 2 for pair in merges):
        raise StartupError(f"{model.files[0]}: tokenizer.ggml.merges are not all pairs. {OTHER}")
    return [(left, right) for left, right in merges]


def _spelled(
    model: Gguf, vocabulary: dict[str, int], merges: Sequence[tuple[str, str]], *, prefix: Any
) -> dict[str, Any]:  # fmt: skip
    """A SentencePiece-like tokenizer: spaces are spelled out, and bytes are tokens.

    Args:
        prefix: whether texts get a space in front.
    """
    pieces = bpe(
        vocabulary, merges, byte_fallback=True, fuse_unk=True, unk_token=_special_tokens(model).get("unk_token")
    )
    before = [SPACE_IN_FRONT] if prefix else []
    return _definition(
        model, pieces, normalizer={"type": "Sequence", "normalizers": [*before, SPELLED_SPACES]},
        decoder=pieces_decoder(prefix=bool(prefix)), post_processor=_around(model, None),
    )  # fmt: skip


def _definition(model: Gguf, pieces: dict[str, Any], **steps: Any) -> dict[str, Any]:
    ids: dict[str, int] = pieces["vocab"]
    kinds = token_kinds(model)
    tokens = [
        added(index, text, special=kinds[index] != TokenKind.USER_DEFINED)
        for text, index in sorted(ids.items(), key=lambda token: token[1])
        if kinds[index] in _ADDED
    ]
    return whole(pieces, tokens, **steps)


def _vocabulary(model: Gguf) -> dict[str, int]:
    """Text → id, without the unused tokens that only pad the model's matrix.

    Raises:
        StartupError: two tokens have the same text.
    """
    tokens = model.texts("tokenizer.ggml.tokens")
    kinds = token_kinds(model)
    found = {text: index for index, text in enumerate(tokens) if kinds[index] != TokenKind.UNUSED}
    expected = sum(kind != TokenKind.UNUSED for kind in kinds)
    if len(found) != expected:
        raise StartupError(f"{model.files[0]}: {expected - len(found)} tokens have the same text as another. {OTHER}")
    return found


def _scores(model: Gguf) -> list[float]:
    found, count = model.metadata.get("tokenizer.ggml.scores"), len(model.texts("tokenizer.ggml.tokens"))
    if not isinstance(found, list) or len(found) != count:
        raise StartupError(f"{model.files[0]}: tokenizer.ggml.scores does not have a number for each token. {OTHER}")
    return [float(score) for score in found]


def _around(model: Gguf, rules: PreTokenizer | None) -> dict[str, Any] | None:
    """The post-processor that adds special tokens around a text. Files that do not specify them follow their kind."""
    begins = model.metadata.get("tokenizer.ggml.add_bos_token", rules is None or rules.begins)
    ends = model.metadata.get("tokenizer.ggml.add_eos_token", False)
    special = _special_tokens(model)
    first = [special["bos_token"]] if begins and "bos_token" in special else []
    last = [special["eos_token"]] if ends and "eos_token" in special else []
    ids = {text: index for index, text in enumerate(model.texts("tokenizer.ggml.tokens"))}
    nothing = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False} if rules else None
    return around(ids, first, last) or nothing


def _special_tokens(model: Gguf) -> dict[str, str]:
    """Special tokens: name → text.

    Raises:
        StartupError: the file refers to a token that does not exist.
    """
    tokens, found = model.texts("tokenizer.ggml.tokens"), {}
    for name, key in _NAMED.items():
        index = model.number(f"tokenizer.ggml.{key}")
        if index is not None and not 0 <= index < len(tokens):
            raise StartupError(
                f"{model.files[0]}: tokenizer.ggml.{key} is {index}, but there are only {len(tokens)} tokens."
            )
        if index is not None:
            found[name] = tokens[index]
    return found


def _chat_templates(model: Gguf) -> dict[str, str]:
    """Chat templates: name → template."""
    prefix = "tokenizer.chat_template"
    found = {name: text for name in model.texts(f"{prefix}s") if (text := model.text(f"{prefix}.{name}"))}
    return found | ({"default": text} if (text := model.text(prefix)) else {})
