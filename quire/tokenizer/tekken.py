"""Converts tekken.json, Mistral's tokenizer format, to a tokenizer of the library that Quire uses.

The file has byte strings by rank, where lower ranks are merged first, after special tokens, only some of which it may
name.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors

from quire.errors import StartupError
from quire.media import MediaKind
from quire.tokenizer.files import TokenizerFiles
from quire.tokenizer.pieces_merges import merges_of_ranks
from quire.tokenizer.token_bytes import spelling_of

FILE = "tekken.json"
# Tokens of images and audio.
IMAGE, IMAGE_BREAK, IMAGE_END, AUDIO = "[IMG]", "[IMG_BREAK]", "[IMG_END]", "[AUDIO]"
# The token of models that hear a recording while they write: nothing is to be written yet.
STREAMING_PAD = "[STREAMING_PAD]"
# Special tokens of files that name none.
_FIRST = (
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]", "[TOOL_CALLS]", IMAGE, "<pad>", IMAGE_BREAK, IMAGE_END, "[PREFIX]", "[MIDDLE]", "[SUFFIX]",
    "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]",
)  # fmt: skip
_NAMED = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}


def read_tekken(folder: Path) -> TokenizerFiles:
    """Reads a folder's tekken.json.

    Raises:
        StartupError: the folder has no tekken.json, or one that cannot be read.
    """
    path = folder / FILE
    try:
        content = json.loads(path.read_bytes())
        tokenizer = _tokenizer(content)
        media = tekken_media(content, tokenizer)
    except FileNotFoundError:
        raise StartupError(
            f"--tokenizer-mode mistral: {folder} has no {FILE}. Use --tokenizer-mode auto for tokenizer.json, "
            "or for the older tokenizer.model."
        ) from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StartupError(f"{path} cannot be read: {type(error).__name__}: {error}") from error
    special = {name: text for name, text in _NAMED.items() if tokenizer.token_to_id(text) is not None}
    return TokenizerFiles(tokenizer, json.loads(tokenizer.to_str()), {}, special, {}, conversations=path, media=media)


def tekken_media(content: Mapping[str, Any], tokenizer: tokenizers.Tokenizer) -> dict[str, dict[str, Any]]:
    """The settings of how images and audio are prepared, by kind, with the `token_id` of each of their embeddings.

    Args:
        content: of tekken.json. Older files have those of images under another name.
    """
    audio = content.get("audio")
    found = {
        MediaKind.IMAGE: (content.get("image") or content.get("multimodal"), IMAGE),
        MediaKind.AUDIO: (audio, STREAMING_PAD if audio and is_live(audio) else AUDIO),
    }  # fmt: skip
    ids = {kind: tokenizer.token_to_id(token) for kind, (_, token) in found.items()}
    return {
        kind: {**settings, "token_id": ids[kind]}
        for kind, (settings, _) in found.items()
        if settings and ids[kind] is not None
    }


def is_live(audio: Mapping[str, Any]) -> bool:
    """Whether a model hears a recording while it writes (Voxtral Realtime).

    Args:
        audio: settings of how its audio is prepared.
    """
    return bool(audio.get("transcription_format") == "streaming")


def delay_tokens(audio: Mapping[str, Any]) -> int:
    """Tokens by which such a model's text is behind the recording.

    Raises: KeyError or others if settings are missing or malformed.
    """
    return int(audio["transcription_delay_ms"] * audio["frame_rate"] / 1000 + 0.5)


def _tokenizer(content: Mapping[str, Any]) -> tokenizers.Tokenizer:
    config = content["config"]
    special = _special_tokens(content.get("special_tokens"), config["default_num_special_tokens"])
    words = _words(content["vocab"], config["default_vocab_size"] - len(special))
    vocab = {spelling_of(word): len(special) + rank for word, rank in words.items()}
    vocab |= {token: number for number, token in enumerate(special)}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab, merges_of_ranks(words), ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(config["pattern"]), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", vocab["<s>"])])
    tokenizer.add_special_tokens([tokenizers.AddedToken(token, special=True, normalized=False) for token in special])
    return tokenizer


def _special_tokens(named: Sequence[Mapping[str, Any]] | None, count: int) -> list[str]:
    """All special tokens, in the order of their ids."""
    first = [token["token_str"] for token in sorted(named, key=lambda token: token["rank"])] if named else [*_FIRST]
    return first + [f"<SPECIAL_{number}>" for number in range(len(first), count)]


def _words(vocab: Sequence[Mapping[str, Any]], count: int) -> dict[bytes, int]:
    """Byte string → rank, for ranks below `count`."""
    return {base64.b64decode(word["token_bytes"]): word["rank"] for word in vocab if word["rank"] < count}
