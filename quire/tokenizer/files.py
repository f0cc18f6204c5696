"""Reads a model folder's tokenizer files, in the layouts of Transformers 4 and 5.

As in Transformers 5, tokenizer.json alone determines the special tokens around a text, if there is one; `add_bos_token`
and `add_eos_token` in tokenizer_config.json concern the older files, which are converted to it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tokenizers

from quire.errors import StartupError
from quire.gguf.files import is_gguf
from quire.hub import Wanted
from quire.model_folder import model_folder
from quire.options.model import ModelOptions
from quire.tokenizer.configuration import nameless_tokens, read_json, special_tokens, text_of
from quire.tokenizer.conversion.registry import convert
from quire.tokenizer.definition import build
from quire.tokenizer.gguf import gguf_tokenizer
from quire.tokenizer.vocabulary_files import VOCABULARIES, WHOLE

# DeepSeek's code for prompts is never run; it shows which ones the model knows.
PATTERNS = ("*.json", "*.jinja", "additional_chat_templates/*.jinja", "encoding/encoding_dsv4.py", *VOCABULARIES)
_PARTS = ("model", "normalizer", "pre_tokenizer", "post_processor", "decoder")


@dataclass(frozen=True)
class TokenizerFiles:
    """The parsed tokenizer files."""

    tokenizer: tokenizers.Tokenizer
    definition: dict[str, Any]  # tokenizer.json, as used
    config: dict[str, Any]  # tokenizer_config.json without the chat template
    special_tokens: dict[str, str] = field(default_factory=dict)  # "eos_token" → its text
    chat_templates: dict[str, str] = field(default_factory=dict)  # "default", and others in some models
    conversations: Path | None = None  # from which Mistral's package renders conversations, without a template
    folder: Path | None = None  # that of the files, with others of the model
    # If conversations come from Mistral's package: see `tekken_media`.
    media: dict[str, dict[str, Any]] = field(default_factory=dict)


def tokenizer_folder(options: ModelOptions) -> Path:
    """The tokenizer's folder, downloaded if it is a name on the hub; or the model's file.

    Raises:
        StartupError: there is no such folder, or the hub does not provide it.
    """
    revision = options.tokenizer_revision or (None if options.tokenizer else options.revision)
    return model_folder(Wanted(options.tokenizer_name, revision, PATTERNS), options.hub)


def read_tokenizer_files(folder: Path) -> TokenizerFiles:
    """Reads the tokenizer files.

    Args:
        folder: the tokenizer's folder, or a model's file that contains it.

    Raises:
        StartupError: a file is missing or cannot be parsed.
    """
    if is_gguf(folder):
        definition, special_tokens, templates = gguf_tokenizer(folder)
        return TokenizerFiles(build(definition, folder), definition, {}, special_tokens, templates)
    try:
        return _read(folder)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise StartupError(
            f"{folder}: tokenizer_config.json or a chat template cannot be read: {type(error).__name__}: {error}"
        ) from error


def _read(folder: Path) -> TokenizerFiles:
    config = read_json(folder / "tokenizer_config.json")
    named = {**read_json(folder / "special_tokens_map.json"), **config}
    lowers = bool(read_json(folder / "sentence_bert_config.json").get("do_lower_case"))
    if (folder / WHOLE).is_file():
        tokenizer, definition = _whole(folder / WHOLE, lowers=lowers)
        special = special_tokens(named)
    else:
        converted = convert(folder, named)
        definition = _lowering(converted.definition) if lowers else converted.definition
        tokenizer, special = build(definition, folder), converted.special_tokens
    _add_missing_tokens(tokenizer, config, special)
    return TokenizerFiles(
        tokenizer,
        definition,
        {key: value for key, value in config.items() if key != "chat_template"},
        special,
        _chat_templates(folder, config),
        folder=folder,
    )


def _whole(path: Path, *, lowers: bool) -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
    """Reads tokenizer.json."""
    try:
        definition = json.loads(path.read_bytes())
        if lowers:
            definition = _lowering(definition)
            tokenizer = tokenizers.Tokenizer.from_str(json.dumps(definition))
        else:
            tokenizer = tokenizers.Tokenizer.from_file(str(path))
        if not all(_is_typed(definition.get(name)) for name in _PARTS):
            definition = json.loads(tokenizer.to_str())
    except Exception as error:  # the library raises bare Exceptions
        raise StartupError(f"{path} cannot be loaded: {error}") from error
    # A length limit or padding left in the file from training would silently change prompts.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer, definition


def _is_typed(part: Any) -> bool:
    """Whether a part of a tokenizer is as the library writes it. It also takes others, such as a model without its type
    from old files."""
    return part is None or (isinstance(part, dict) and "type" in part)


def _lowering(definition: dict[str, Any]) -> dict[str, Any]:
    """The definition of a tokenizer that lowercases before anything else, as in sentence-transformers."""
    own = [definition["normalizer"]] if definition.get("normalizer") else []
    return {**definition, "normalizer": {"type": "Sequence", "normalizers": [{"type": "Lowercase"}, *own]}}


def _add_missing_tokens(tokenizer: tokenizers.Tokenizer, config: dict[str, Any], special: dict[str, str]) -> None:
    """Adds the tokens that only tokenizer_config.json lists, in the order in which Transformers numbers them."""
    by_id = sorted((config.get("added_tokens_decoder") or {}).items(), key=lambda item: int(item[0]))
    more = nameless_tokens(config)
    wanted = [token for _, token in by_id] + list(special.values()) + more
    for token in wanted:
        text = text_of(token)
        if text is None or tokenizer.token_to_id(text) is not None:
            continue
        properties = token if isinstance(token, dict) else {"special": True}
        known = {key: properties[key] for key in ("lstrip", "rstrip", "single_word", "normalized") if key in properties}
        tokenizer.add_tokens([tokenizers.AddedToken(text, special=bool(properties.get("special")), **known)])
    # These are in the vocabulary already, but must be marked as special.
    named = [text for text in (*special.values(), *map(text_of, more)) if text]
    tokenizer.add_special_tokens(named)


def _chat_templates(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    """Name → template. A template in a file of its own takes precedence over one in the configuration."""
    inside = config.get("chat_template")
    if isinstance(inside, list):  # several named templates
        found = {str(entry["name"]): str(entry["template"]) for entry in inside}
    else:
        found = {"default": inside} if isinstance(inside, str) else {}
    if isinstance(text := read_json(folder / "chat_template.json").get("chat_template"), str):
        found["default"] = text
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        found[path.stem] = path.read_text(encoding="utf-8")
    if (path := folder / "chat_template.jinja").is_file():
        found["default"] = path.read_text(encoding="utf-8")
    return found
