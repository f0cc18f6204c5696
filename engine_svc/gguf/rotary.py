"""Rotary embedding settings of GGUF files as `rope_parameters` of Transformers 5."""

from __future__ import annotations

from typing import Any

from engine_svc.gguf.facts import Facts
from quire.errors import StartupError

_FREQUENCIES, _SHORT, _LONG = "rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight"


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
