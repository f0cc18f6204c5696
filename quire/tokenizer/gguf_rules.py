"""Rules by which byte-level vocabularies split a text before merging, under the names that GGUF files use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_MARKS = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_FIRST, _SHORT = r"[^\r\n\p{L}\p{N}]?", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_TEKKEN = rf"{_FIRST}{_UPPER}*{_LOWER}+|{_FIRST}{_UPPER}+{_LOWER}*|\p{{N}}|{_MARKS}"
_GPT4O = rf"{_FIRST}{_UPPER}*{_LOWER}+{_SHORT}|{_FIRST}{_UPPER}+{_LOWER}*{_SHORT}|\p{{N}}{{1,3}}|{_MARKS}"
_NO_HAN = "&&[^\\p{Han}]]"
_KIMI_UPPER, _KIMI_LOWER = _UPPER[:-1] + _NO_HAN, _LOWER[:-1] + _NO_HAN
_KIMI = (
    rf"[\p{{Han}}]+|{_FIRST}{_KIMI_UPPER}*{_KIMI_LOWER}+{_SHORT}|{_FIRST}{_KIMI_UPPER}+{_KIMI_LOWER}*{_SHORT}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN35 = _QWEN2.replace(r"\p{L}+", r"[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]")
_NUMBERS, _CJK = r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+"  # noqa: RUF001
_WORDS = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_BLOOM = r" ?[^(\s|[.,!?…。，、।۔،])]+"  # noqa: RUF001


@dataclass(frozen=True)
class PreTokenizer:
    """One set of rules."""

    patterns: tuple[str, ...]  # applied in order; empty means GPT-2's
    digits: bool = False  # split into single digits first
    punctuation: bool = False  # split off first
    triples: bool = False  # split digits into groups of three last
    begins: bool = False  # whether texts begin with the BOS token, if a file does not say
    ignore_merges: bool = False  # words that are tokens are not built by merges
    composes: bool = False  # characters are composed first (NFC)


_GPT2 = PreTokenizer(())
_DIGITS = PreTokenizer((), digits=True)
_LLAMA = PreTokenizer((_LLAMA3,), begins=True, ignore_merges=True)
_QWEN = PreTokenizer((_QWEN2,), composes=True)
_O200K = PreTokenizer((_GPT4O,))

BYTE_LEVEL: Mapping[str, PreTokenizer] = {
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "jina-en", "jina-es", "jina-de"), _GPT2),
    **dict.fromkeys(("starcoder", "refact", "smollm", "codeshell", "exaone", "command-r"), _DIGITS),
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "midm-2.0", "lfm2"), _LLAMA),
    **dict.fromkeys(("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"), PreTokenizer((_LLAMA3,))),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez", "kormo"), _QWEN),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "minimax-m2"), _O200K),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense"), PreTokenizer((_NUMBERS, _CJK, _WORDS))),
    "qwen35": PreTokenizer((_QWEN35,), composes=True),
    "hunyuan": PreTokenizer((_QWEN2,)),
    "kimi-k2": PreTokenizer((_KIMI,), ignore_merges=True),
    "bloom": PreTokenizer((_BLOOM,)),
    "falcon": PreTokenizer((), punctuation=True, triples=True),
    "tekken": PreTokenizer((_TEKKEN,), begins=True, ignore_merges=True),
}


def byte_level_steps(rules: PreTokenizer) -> dict[str, Any]:
    """The rules as the pre_tokenizer of tokenizer.json."""
    spelling = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": not rules.patterns,
    }
    steps: list[dict[str, Any]] = [{"type": "Digits", "individual_digits": True}] if rules.digits else []
    steps += [{"type": "Punctuation", "behavior": "Contiguous"}] if rules.punctuation else []
    steps += [_split(pattern) for pattern in rules.patterns]
    behind = [{"type": "Digits", "individual_digits": False}, _split("[0-9][0-9][0-9]")] if rules.triples else []
    return {"type": "Sequence", "pretokenizers": [*steps, spelling, *behind]}


def _split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
