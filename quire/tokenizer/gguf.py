"""Converts the tokenizer in a GGUF file to the form of tokenizer.json."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers

from quire.errors import StartupError
from quire.gguf.files import Gguf, read_gguf
from quire.gguf.tokens import TokenKind, token_kinds
from quire.tokenizer.gguf_rules import BYTE_LEVEL, PreTokenizer, byte_level_steps
from quire.tokenizer.pieces_merges import merges_of_pieces, with_spelled_spaces

_NAMED = {
    "bos_token": "bos_token_id", "eos_token": "eos_token_id", "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id", "sep_token": "seperator_token_id", "mask_token": "mask_token_id",
}  # fmt: skip
_ADDED = (TokenKind.CONTROL, TokenKind.USER_DEFINED, TokenKind.UNKNOWN)
_OTHER = "Name the original model's tokenizer with --tokenizer."


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
            f"are. {_OTHER}"
        )
    definition = convert(model)
    return definition, _special_tokens(model), _chat_templates(model)


def _byte_level(model: Gguf) -> dict[str, Any]:
    name = model.text("tokenizer.ggml.pre")
    if name not in BYTE_LEVEL:
        raise StartupError(
            f"{model.files[0]}: its tokenizer splits texts by the rules {name or 'none'!r}, which are not supported. "
            + _OTHER
        )
    rules = BYTE_LEVEL[name]
    bpe = {
        "type": "BPE", "vocab": _vocabulary(model), "merges": _merges(model), "ignore_merges": rules.ignore_merges,
    }  # fmt: skip
    return _definition(
        model, bpe, normalizer={"type": "NFC"} if rules.composes else None, pre_tokenizer=byte_level_steps(rules),
        decoder={"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        after=_around(model, rules),
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
        raise StartupError(f"{model.files[0]}: tokenizer.ggml.merges is missing, which the kind gemma4 needs. {_OTHER}")
    prefix = model.metadata.get("tokenizer.ggml.add_space_prefix", False)
    return _spelled(model, _vocabulary(model), merges, prefix=prefix)


def _merges(model: Gguf) -> list[tuple[str, str]]:
    """
    Raises:
        StartupError: a merge is not of two tokens.
    """
    merges = [merge.split(" ") for merge in model.texts("tokenizer.ggml.merges")]
    if any(len(pair) != 2 for pair in merges):
        raise StartupError(f"{model.files[0]}: tokenizer.ggml.merges are not all pairs. {_OTHER}")
    return [(left, right) for left, right in merges]


def _spelled(
    model: Gguf, vocabulary: dict[str, int], merges: Sequence[tuple[str, str]], *, prefix: Any
) -> dict[str, Any]:  # fmt: skip
    """A SentencePiece-like tokenizer: spaces are spelled out, and bytes are tokens.

    Args:
        prefix: whether texts get a space in front.
    """
    tokens = model.texts("tokenizer.ggml.tokens")
    unknown = model.number("tokenizer.ggml.unknown_token_id")
    bpe = {
        "type": "BPE", "vocab": vocabulary, "merges": merges,
        "byte_fallback": True, "fuse_unk": True,
        "unk_token": tokens[unknown] if unknown is not None and unknown < len(tokens) else None,
    }  # fmt: skip
    spelled: dict[str, Any] = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    before = [{"type": "Prepend", "prepend": "▁"}] if prefix else []
    decoders: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
    ]  # fmt: skip
    if prefix:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return _definition(
        model, bpe, normalizer={"type": "Sequence", "normalizers": [*before, spelled]}, pre_tokenizer=None,
        decoder={"type": "Sequence", "decoders": decoders}, after=_around(model, None),
    )  # fmt: skip


def _definition(model: Gguf, bpe: dict[str, Any], *, after: dict[str, Any] | None, **steps: Any) -> dict[str, Any]:
    ids: dict[str, int] = bpe["vocab"]
    kinds, added = token_kinds(model), []
    for text, index in sorted(ids.items(), key=lambda token: token[1]):
        if kinds[index] in _ADDED:
            is_special = kinds[index] != TokenKind.USER_DEFINED
            added.append({"id": index, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
                          "normalized": False, "special": is_special})  # fmt: skip
    whole = {"dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
             "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, **bpe}  # fmt: skip
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": added, **steps, "post_processor": after, "model": whole,
    }  # fmt: skip


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
        raise StartupError(f"{model.files[0]}: {expected - len(found)} tokens have the same text as another. {_OTHER}")
    return found


def _scores(model: Gguf) -> list[float]:
    found, count = model.metadata.get("tokenizer.ggml.scores"), len(model.texts("tokenizer.ggml.tokens"))
    if not isinstance(found, list) or len(found) != count:
        raise StartupError(f"{model.files[0]}: tokenizer.ggml.scores does not have a number for each token. {_OTHER}")
    return [float(score) for score in found]


def _around(model: Gguf, rules: PreTokenizer | None) -> dict[str, Any] | None:
    """The post-processor that adds special tokens around a text. Files that do not specify them follow their kind."""
    begins = model.metadata.get("tokenizer.ggml.add_bos_token", rules is None or rules.begins)
    ends = model.metadata.get("tokenizer.ggml.add_eos_token", False)
    special = _special_tokens(model)
    first = special.get("bos_token") if begins else None
    last = special.get("eos_token") if ends else None
    if first is None and last is None:
        return {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False} if rules else None
    ids = {text: index for index, text in enumerate(model.texts("tokenizer.ggml.tokens"))}

    def pattern(sequence: str, number: int) -> list[dict[str, Any]]:
        before = [{"SpecialToken": {"id": first, "type_id": number}}] if first else []
        after = [{"SpecialToken": {"id": last, "type_id": number}}] if last else []
        return [*before, {"Sequence": {"id": sequence, "type_id": number}}, *after]

    return {
        "type": "TemplateProcessing", "single": pattern("A", 0), "pair": [*pattern("A", 0), *pattern("B", 1)],
        "special_tokens": {
            text: {"id": text, "ids": [ids[text]], "tokens": [text]} for text in (first, last) if text is not None
        },
    }  # fmt: skip


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


def build(definition: dict[str, Any], file: Path) -> tokenizers.Tokenizer:
    """Builds the tokenizer.

    Raises:
        StartupError: the parts are inconsistent, such as merges of tokens that do not exist.
    """
    try:
        return tokenizers.Tokenizer.from_str(json.dumps(definition))
    except Exception as error:  # the library raises bare Exceptions
        raise StartupError(f"{file}: its tokenizer cannot be built: {error}. {_OTHER}") from error
