"""Reads a model folder's tokenizer files, in the layouts of Transformers 4 and 5.

As in Transformers 5, tokenizer.json alone determines the special tokens around a text; `add_bos_token` and
`add_eos_token` in tokenizer_config.json concern the old slow tokenizers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tokenizers

from quire.errors import StartupError
from quire.gguf.files import is_gguf
from quire.hub import Wanted
from quire.model_folder import model_folder
from quire.options.model import ModelOptions
from quire.tokenizer.gguf import build, gguf_tokenizer

# DeepSeek's code for prompts is never run; it shows which ones the model knows.
PATTERNS = ("*.json", "*.jinja", "additional_chat_templates/*.jinja", "encoding/encoding_dsv4.py")

_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


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
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise StartupError(
            f"No tokenizer.json in {folder}. Quire needs a fast tokenizer; make one with "
            "`AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)` of Transformers, "
            "or name another folder with --tokenizer."
        )
    try:
        definition = json.loads(path.read_bytes())
        if _read_json(folder / "sentence_bert_config.json").get("do_lower_case"):
            definition["normalizer"] = _lowering(definition.get("normalizer"))
            tokenizer = tokenizers.Tokenizer.from_str(json.dumps(definition))
        else:
            tokenizer = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exceptions
        raise StartupError(f"{path} cannot be loaded: {error}") from error
    # A length limit or padding left in the file from training would silently change prompts.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    try:
        return _with_config(tokenizer, definition, folder)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise StartupError(
            f"{folder}: tokenizer_config.json or a chat template cannot be read: {type(error).__name__}: {error}"
        ) from error


def fields_of(path: Path) -> Mapping[str, Any]:
    """The object in a JSON file of the model; empty where there is none: what needs the file says what is wrong."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _with_config(tokenizer: tokenizers.Tokenizer, definition: dict[str, Any], folder: Path) -> TokenizerFiles:
    config = _read_json(folder / "tokenizer_config.json")
    special_tokens = _special_tokens({**_read_json(folder / "special_tokens_map.json"), **config})
    _add_missing_tokens(tokenizer, config, special_tokens)
    return TokenizerFiles(
        tokenizer,
        definition,
        {key: value for key, value in config.items() if key != "chat_template"},
        special_tokens,
        _chat_templates(folder, config),
        folder=folder,
    )


def _lowering(normalizer: dict[str, Any] | None) -> dict[str, Any]:
    """A normalizer that lowercases before anything else, as in sentence-transformers."""
    own = [] if normalizer is None else [normalizer]
    return {"type": "Sequence", "normalizers": [{"type": "Lowercase"}, *own]}


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise StartupError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise StartupError(f"{path} must hold a JSON object.")
    return content


def _text_of(token: Any) -> str | None:
    """The text of a token, which is given as its text or as an object with properties."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    found = {name: text for name in _NAMED_TOKENS if (text := _text_of(config.get(name))) is not None}
    extra = config.get("extra_special_tokens")
    if isinstance(extra, dict):
        found |= {name: text for name, token in extra.items() if (text := _text_of(token)) is not None}
    return found


def _add_missing_tokens(
    tokenizer: tokenizers.Tokenizer, config: dict[str, Any], special_tokens: dict[str, str]
) -> None:
    """Adds the tokens that only tokenizer_config.json lists, in the order in which Transformers numbers them."""
    by_id = sorted((config.get("added_tokens_decoder") or {}).items(), key=lambda item: int(item[0]))
    extra = config.get("extra_special_tokens")
    more = [*(config.get("additional_special_tokens") or ()), *(extra if isinstance(extra, list) else ())]
    wanted = [token for _, token in by_id] + list(special_tokens.values()) + more
    for token in wanted:
        text = _text_of(token)
        if text is None or tokenizer.token_to_id(text) is not None:
            continue
        properties = token if isinstance(token, dict) else {"special": True}
        known = {key: properties[key] for key in ("lstrip", "rstrip", "single_word", "normalized") if key in properties}
        tokenizer.add_tokens([tokenizers.AddedToken(text, special=bool(properties.get("special")), **known)])
    # These are in the vocabulary already, but must be marked as special.
    named = [text for text in (*special_tokens.values(), *map(_text_of, more)) if text]
    tokenizer.add_special_tokens(named)


def _chat_templates(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    """Name → template. A template in a file of its own takes precedence over one in the configuration."""
    inside = config.get("chat_template")
    if isinstance(inside, list):  # several named templates
        found = {str(entry["name"]): str(entry["template"]) for entry in inside}
    else:
        found = {"default": inside} if isinstance(inside, str) else {}
    if isinstance(text := _read_json(folder / "chat_template.json").get("chat_template"), str):
        found["default"] = text
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        found[path.stem] = path.read_text(encoding="utf-8")
    if (path := folder / "chat_template.jinja").is_file():
        found["default"] = path.read_text(encoding="utf-8")
    return found
