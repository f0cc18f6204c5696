"""Converts files of byte strings by rank, as tiktoken reads them: byte-level BPE."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from quire.errors import StartupError
from quire.tokenizer.conversion.source import Converted, Source
from quire.tokenizer.definition import BYTE_LEVEL_DECODER, bpe, whole
from quire.tokenizer.gguf_rules import BYTE_LEVEL, PreTokenizer, byte_level_steps
from quire.tokenizer.pieces_merges import merges_of_ranks
from quire.tokenizer.token_bytes import spelling_of
from quire.tokenizer.vocabulary_files import RANKS


@dataclass(frozen=True)
class _Family:
    """What the code beside such a file says, which is never run."""

    rules: PreTokenizer
    after_ranks: tuple[str, ...] = ()  # special tokens
    num_reserved: int = 0  # ids after the ranks; those that the folder does not name are special tokens all the same
    special_tokens: Mapping[str, str] = field(default_factory=dict)


_EXTRA = tuple(f"<|extra_{number}|>" for number in range(205))
# By the classes in the code of checkpoints.
_FAMILIES: Mapping[str, _Family] = {
    "TikTokenTokenizer": _Family(  # Kimi
        BYTE_LEVEL["kimi-k2"], num_reserved=256, special_tokens={"bos_token": "[BOS]", "eos_token": "[EOS]"}
    ),
    "QWenTokenizer": _Family(BYTE_LEVEL["qwen2"], ("<|endoftext|>", "<|im_start|>", "<|im_end|>", *_EXTRA)),
    "HYTokenizer": _Family(  # Hunyuan
        BYTE_LEVEL["qwen2"], ("<|endoftext|>", "<|startoftext|>", "<|bos|>", "<|eos|>", "<|pad|>", *_EXTRA)
    ),
}


def convert_ranks(source: Source) -> Converted:
    """
    Raises:
        StartupError: the file cannot be read, or it is not known how this class splits texts.
    """
    path = next(file for pattern in RANKS for file in sorted(source.folder.glob(pattern)))
    family = _FAMILIES.get(source.tokenizer_class)
    if family is None:
        raise source.refuse_class(path.name, [*_FAMILIES])
    words = _words(path)
    vocabulary = {spelling_of(word): rank for word, rank in words.items()}
    first = max(words.values(), default=-1) + 1
    own = {first + number: text for number, text in enumerate(family.after_ranks)}
    tokens = source.place_tokens(vocabulary, own, first + family.num_reserved)
    special = source.named_tokens(family.special_tokens, vocabulary)
    return Converted(
        whole(
            bpe(vocabulary, merges_of_ranks(words), ignore_merges=True), tokens,
            normalizer={"type": "NFC"} if family.rules.composes else None,
            pre_tokenizer=byte_level_steps(family.rules), decoder=BYTE_LEVEL_DECODER,
            post_processor=source.framing(special, vocabulary),
        ),
        special,
    )  # fmt: skip


def _words(path: Path) -> dict[bytes, int]:
    """Byte string → rank."""
    try:
        lines = [line.split() for line in path.read_bytes().splitlines() if line]
        return {base64.b64decode(word, validate=True): int(rank) for word, rank in lines}
    except (OSError, ValueError) as error:
        raise StartupError(f"{path} has no byte strings in base64 with their ranks: {error}") from error
