"""How byte-level vocabularies split a text before they merge, by the names that GGUF files have for it."""

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


@dataclass(frozen=True)
class PreTokenizer:
    """One way."""

    pattern: str | None  # None: GPT-2's
    digits: bool = False  # each by itself, before anything else
    begins: bool = False  # texts begin with the vocabulary's token for it, where a file does not say
    ignore_merges: bool = False  # words that are tokens are not merged from parts
    composes: bool = False  # characters are composed first (NFC)


_GPT2 = PreTokenizer(None)
_DIGITS = PreTokenizer(None, digits=True)
_LLAMA = PreTokenizer(_LLAMA3, begins=True, ignore_merges=True)
_QWEN = PreTokenizer(_QWEN2, composes=True)
_O200K = PreTokenizer(_GPT4O)

BYTE_LEVEL: Mapping[str, PreTokenizer] = {
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "jina-en", "jina-es", "jina-de"), _GPT2),
    **dict.fromkeys(("starcoder", "refact", "smollm", "codeshell", "exaone", "command-r"), _DIGITS),
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "midm-2.0", "lfm2"), _LLAMA),
    **dict.fromkeys(("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"), PreTokenizer(_LLAMA3)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez", "kormo"), _QWEN),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2"), _O200K),
    "tekken": PreTokenizer(_TEKKEN, begins=True, ignore_merges=True),
}


def byte_level_steps(rules: PreTokenizer) -> dict[str, Any]:
    """As tokenizer.json has them."""
    spelling = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": rules.pattern is None,
    }
    steps: list[dict[str, Any]] = [{"type": "Digits", "individual_digits": True}] if rules.digits else []
    if rules.pattern is not None:
        split = {"type": "Split", "pattern": {"Regex": rules.pattern}, "behavior": "Isolated", "invert": False}
        steps.append(split)
    return {"type": "Sequence", "pretokenizers": [*steps, spelling]}
