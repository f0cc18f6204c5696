"""Converts vocab.json and merges.txt: byte-level BPE."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tokenizers.models import BPE

from quire.errors import StartupError
from quire.tokenizer.conversion.source import Converted, Source
from quire.tokenizer.definition import BYTE_LEVEL_DECODER, around, bpe, whole
from quire.tokenizer.gguf_rules import BYTE_LEVEL, PreTokenizer, byte_level_steps
from quire.tokenizer.vocabulary_files import MERGES

_END = "<|endoftext|>"


@dataclass(frozen=True)
class _Class:
    """One of Transformers' classes."""

    special_tokens: Mapping[str, str]  # where the folder does not name them
    rules: PreTokenizer = BYTE_LEVEL["gpt-2"]
    framed_by: tuple[str, ...] = ()  # what texts begin with, and end with the EOS token; empty: as the folder says


_GPT2 = _Class(dict.fromkeys(("bos_token", "eos_token", "unk_token"), _END))
_QWEN2 = _Class(dict.fromkeys(("eos_token", "unk_token", "pad_token"), _END), BYTE_LEVEL["qwen2"])
_ROBERTA = _Class(
    {
        "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "sep_token": "</s>", "pad_token": "<pad>",
        "cls_token": "<s>", "mask_token": "<mask>",
    }
)  # fmt: skip
_CLASSES: Mapping[str, _Class] = {
    **dict.fromkeys(("GPT2Tokenizer", "CodeGenTokenizer"), _GPT2),
    "GPTNeoXTokenizer": replace(_GPT2, rules=PreTokenizer((), composes=True)),
    "Qwen2Tokenizer": _QWEN2,
    "Qwen3_5Tokenizer": replace(_QWEN2, rules=BYTE_LEVEL["qwen35"]),
    **dict.fromkeys(("RobertaTokenizer", "BartTokenizer", "LongformerTokenizer"), _ROBERTA),
    "WhisperTokenizer": replace(_GPT2, framed_by=("<|startoftranscript|>", "<|notimestamps|>")),
}
# Beginnings of model_type, for folders that name no class. All others are taken for GPT-2's.
_OF_MODELS = {
    "qwen3_5": "Qwen3_5Tokenizer", "qwen": "Qwen2Tokenizer", "gpt_neox": "GPTNeoXTokenizer",
    "roberta": "RobertaTokenizer", "bart": "BartTokenizer", "whisper": "WhisperTokenizer",
}  # fmt: skip


def convert_merges(source: Source) -> Converted:
    """
    Raises:
        StartupError: a file cannot be read, or the class is not known.
    """
    of_model = next(
        (name for start, name in _OF_MODELS.items() if source.model_type.startswith(start)), "GPT2Tokenizer"
    )
    found = _CLASSES.get(source.tokenizer_class or of_model)
    if found is None:
        raise source.refuse_class(MERGES, [*_CLASSES])
    files = [source.folder / "vocab.json", source.folder / MERGES]
    try:
        vocabulary, merges = BPE.read_file(*map(str, files))
    except Exception as error:  # the library raises bare Exceptions
        raise StartupError(f"{files[0]} or {MERGES} beside it cannot be read: {error}") from error
    tokens = source.place_tokens(vocabulary)
    special = source.named_tokens(found.special_tokens, vocabulary)
    steps = byte_level_steps(found.rules)
    steps["pretokenizers"][-1]["add_prefix_space"] = source.flag("add_prefix_space", False)
    return Converted(
        whole(
            bpe(vocabulary, merges), tokens, normalizer={"type": "NFC"} if found.rules.composes else None,
            pre_tokenizer=steps, decoder=BYTE_LEVEL_DECODER,
            post_processor=_framing(found, source, special, vocabulary),
        ),
        special,
    )  # fmt: skip


def _framing(
    found: _Class, source: Source, special: Mapping[str, str], vocabulary: Mapping[str, int]
) -> dict[str, Any] | None:
    if found is _ROBERTA:
        ends = {side: [special[f"{side}_token"], vocabulary[special[f"{side}_token"]]] for side in ("sep", "cls")}
        return {"type": "RobertaProcessing", **ends, "trim_offsets": True, "add_prefix_space": False}
    if found.framed_by:
        return around(vocabulary, found.framed_by, [special["eos_token"]])
    return source.framing(special, vocabulary)
