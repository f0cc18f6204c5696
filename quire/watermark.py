"""Watermarks in text: sampling noise that follows from a secret key and the tokens before it, so that whoever has the
key can tell whether a text was sampled with it.

The token is the one whose logit plus Gumbel noise is the greatest, as in any sampling; but with the noise of a keyed
function of the last tokens and of the token itself (Aaronson, "Watermarking of Large Language Models", 2023). Over all
keys its distribution is the model's. Tokens of a marked text have greater noise than others would by chance, which the
key alone shows. The function is that of vLLM's detectors (philox4x32-10-v1): Philox of Salmon, Moraes, Dror and Shaw,
"Parallel random numbers: as easy as 1, 2, 3" (2011), over the context and then over the token. It is no cryptographic
function: many scored texts may give its key away.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from quire.options.watermark import WatermarkConfig

NO_TOKEN = -1  # in a context, before the first token of an answer
_WORD = 2**32 - 1
_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_OF_CONTEXTS, _OF_TOKENS = 0x574D4358, 0x574D544B  # keep both uses of the key apart

Words = tuple[Any, Any, Any, Any]
"""Four 32-bit words: whole numbers, or int64 arrays of numpy or torch, which may be mixed."""


def noise_words(key: int, context: Sequence[Any], quads: Any) -> Words:
    """The random words of the tokens `4 * quads`, and of the three after each.

    Args:
        key: 64 bits.
        context: ids of the last tokens, NO_TOKEN where there are none; numbers or arrays, see Words.
    """
    key0, key1 = key & _WORD, key >> 32
    state: Words = (_OF_CONTEXTS, len(context), 0, 0)
    for start in range(0, len(context), 4):
        block = [token & _WORD for token in context[start : start + 4]]
        block += [_WORD - index for index in range(len(block), 4)]
        mixed = [word ^ token for word, token in zip(state, block, strict=True)]
        state = _philox((mixed[0], mixed[1], mixed[2], mixed[3]), key0 ^ start, key1)
    return _philox((quads, state[0], state[1], state[2]), key0 ^ state[3], key1 ^ _OF_TOKENS)


def _philox(words: Words, key0: Any, key1: Any) -> Words:
    """A product of two words may overflow an int64 array; its bits are right all the same."""
    word0, word1, word2, word3 = words
    for _ in range(_ROUNDS):
        product0, product1 = word0 * _MULTIPLIERS[0], word2 * _MULTIPLIERS[1]
        word0, word1, word2, word3 = (
            (product1 >> 32) & _WORD ^ word1 ^ key0, product1 & _WORD,
            (product0 >> 32) & _WORD ^ word3 ^ key1, product0 & _WORD,
        )  # fmt: skip
        key0, key1 = (key0 + _WEYL[0]) & _WORD, (key1 + _WEYL[1]) & _WORD
    return word0, word1, word2, word3


def uniform(mantissas: Any) -> Any:
    """The numbers between 0 and 1, both excluded, that random words stand for.

    Args:
        mantissas: the upper 24 bits of the words; numbers, or arrays of float64, as float32 would round some to 1.
    """
    return (mantissas + 1) / (2**24 + 1)


@dataclass(frozen=True)
class Detection:
    """What a text's tokens say about whether it was marked with a key."""

    num_tokens: int
    num_scored_tokens: int  # each context counts once, because its noise is the same
    score: float  # about num_scored_tokens if the text is not marked, and greater if it is
    p_value: float  # how likely a text that is not marked is to have such a score or a greater one
    is_watermarked: bool


def detect(token_ids: Sequence[int], config: WatermarkConfig, threshold: float) -> Detection:
    """Tests whether a text was marked.

    Args:
        threshold: the greatest p-value of text that counts as marked.
    """
    keys = config.keys()
    weights = list(keys.values())
    scores = [
        sum(weight * -math.log1p(-_uniform_of(key, context, token)) for key, weight in keys.items())
        for context, token in _scored(token_ids, config.context_width)
    ]
    # Without a mark, a score of one key is exponentially distributed; that of two, weighted, approximately has the
    # gamma distribution with the same mean and variance.
    variance = sum(weight**2 for weight in weights)
    score = sum(scores)
    p_value = gamma_tail(len(scores) / variance, score / variance) if scores else 1.0
    return Detection(len(token_ids), len(scores), score, p_value, p_value <= threshold)


def _scored(token_ids: Sequence[int], width: int) -> Iterator[tuple[tuple[int, ...], int]]:
    """The tokens that follow their context for the first time, with it."""
    padded, seen = [NO_TOKEN] * width + list(token_ids), set()
    for index, token in enumerate(token_ids):
        context = tuple(padded[index : index + width])
        if context not in seen:
            seen.add(context)
            yield context, token


def _uniform_of(key: int, context: Sequence[int], token: int) -> float:
    found: float = uniform(noise_words(key, context, token >> 2)[token & 3] >> 8)
    return found


def gamma_tail(shape: float, value: float) -> float:
    """The probability that a gamma-distributed number with this shape, and scale 1, is at least `value`."""
    if value <= 0:
        return 1.0
    factor = math.exp(shape * math.log(value) - value - math.lgamma(shape))
    if value < shape + 1:  # one minus the series of the lower part
        term = total = 1 / shape
        step = shape
        while abs(term) > abs(total) * 1e-16:
            step += 1
            term *= value / step
            total += term
        return max(0.0, 1 - factor * total)
    # Its continued fraction, evaluated by Lentz's method.
    part = value + 1 - shape
    numerator, denominator = math.inf, 1 / part
    fraction, index, change = denominator, 0, 0.0
    while abs(change - 1) > 1e-15:
        index += 1
        coefficient, part = -index * (index - shape), part + 2
        denominator = 1 / (coefficient * denominator + part)
        numerator = part + coefficient / numerator
        change = numerator * denominator
        fraction *= change
    return factor * fraction
