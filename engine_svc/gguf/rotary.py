"""Rotary embedding settings of GGUF files as `rope_parameters` of Transformers 5."""

from __future__ import annotations

from typing import Any

from engine_svc.gguf.facts import Facts
from quire.errors import StartupError

_FREQUENCIES, _SHORT, _LONG = "rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight"
_STANDING = 1e29  # a divisor from which nothing rotates; files have 1e30, rounded


def rope_parameters(facts: Facts) -> dict[str, Any]:
    """The `rope_parameters` of a file's model.

    Raises:
        StartupError: the kind of scaling is not supported.
    """
    parameters: dict[str, Any] = {"rope_type": "default", "rope_theta": float(facts.find("rope.freq_base", 10000.0))}
    rotated, size = facts.find("rope.dimension_count"), head_size(facts)
    if rotated and rotated != size:
        parameters["partial_rotary_factor"] = rotated / size
    return parameters | _scaling(facts)


def proportional_rotation(facts: Facts) -> dict[str, Any]:
    """The `rope_parameters` of layers that rotate the first part of each half, at frequencies as if it were all of it.

    Files express this by divisors of the frequencies: 1 for what rotates, and a number so large that nothing moves for
    the rest.

    Raises:
        StartupError: the divisors are others, or the kind of scaling is not supported.
    """
    if not facts.has(_FREQUENCIES):
        return rope_parameters(facts)
    divisors, size = facts.numbers(_FREQUENCIES), head_size(facts)
    rotated = divisors.count(1.0)
    if 2 * len(divisors) != size or any(each != 1.0 for each in divisors[:rotated]) or not _stands(divisors[rotated:]):
        raise StartupError(
            f"{facts.model.files[0]}: {_FREQUENCIES} is {divisors[:8]} …; expected {size // 2} numbers for heads of "
            f"{size}: first 1, then at least {_STANDING:g}. Use the model's safetensors."
        )
    theta = float(facts.find("rope.freq_base", 10000.0))
    return {"rope_type": "proportional", "rope_theta": theta, "partial_rotary_factor": 2 * rotated / size}


def _stands(divisors: list[float]) -> bool:
    return all(each >= _STANDING for each in divisors)


def head_size(facts: Facts) -> int:
    """The size of query and key heads."""
    return int(
        facts.find("attention.key_length") or facts.need("embedding_length") // facts.need("attention.head_count")
    )


def _scaling(facts: Facts) -> dict[str, Any]:
    original = facts.find("rope.scaling.original_context_length") or facts.need("context_length")
    if facts.has(_LONG) and facts.has(_SHORT):
        return {
            "rope_type": "longrope", "short_factor": facts.numbers(_SHORT), "long_factor": facts.numbers(_LONG),
            "original_max_position_embeddings": original,
            "attention_factor": facts.find("rope.scaling.attn_factor", 1.0),
        }  # fmt: skip
    if facts.has(_FREQUENCIES):  # Llama 3's divisors of each frequency, computed by the converter
        factors = facts.numbers(_FREQUENCIES)
        return {
            "rope_type": "longrope", "short_factor": factors, "long_factor": factors,
            "original_max_position_embeddings": original, "attention_factor": 1.0,
        }  # fmt: skip
    kind, factor = facts.find("rope.scaling.type", "none"), facts.find("rope.scaling.factor", 1.0)
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    if kind == "yarn":
        return {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original} | {
            ours: found
            for ours, name in (("beta_fast", "yarn_beta_fast"), ("beta_slow", "yarn_beta_slow"))
            if (found := facts.find(f"rope.scaling.{name}")) is not None
        }
    if kind != "none":
        raise StartupError(f"{facts.model.files[0]}: rope.scaling.type {kind!r} is not supported; linear and yarn are.")
    return {}
