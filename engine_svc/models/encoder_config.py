"""The shape of an encoder, and of the heads that make classes of what models put out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from engine_svc.models.config import ModelConfig, activation, common_fields
from engine_svc.ops.base import PlainActivation

# What names in a checkpoint become, by ModelConfig.renames, from which nothing is loaded; and those of a head.
NOBODYS = "nobodys."
HEAD = "pooling_head."

HeadActivation = PlainActivation | Literal["tanh", "none"]


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(ModelConfig):
    """An encoder: all tokens see each other. Those without learned positions rotate."""

    type_vocab_size: int = 0
    norms_first_layer: bool = True  # before its attention
    has_norm: bool = False
    has_head: bool = False


@dataclass(frozen=True)
class HeadLayer:
    """A linear layer of a head, and what follows it."""

    size: int  # outputs
    activation: HeadActivation = "none"
    bias: bool = True
    norm_epsilon: float | None = None  # of a layer norm behind it; None for none
    norm_bias: bool = True


@dataclass(frozen=True)
class HeadConfig:
    """What makes classes of pooled hidden states, or of each token's."""

    layers: tuple[HeadLayer, ...]
    renames: tuple[tuple[str, str], ...]  # as ModelConfig.renames, to names that begin with HEAD
    pooling: str  # that of the model's own code: CLS, LAST, MEAN; ALL or STEP of tokens


def head_activation(name: str) -> HeadActivation:
    """As a configuration names it.

    Raises:
        StartupError: it is none that is supported.
    """
    if name == "tanh":
        return "tanh"
    found = activation(name)
    assert isinstance(found, str)
    return found


def encoder_config(config: Mapping[str, Any], **family: Any) -> EncoderConfig:
    """The fields that most encoders name alike, and those that the family gives."""
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    fields = common_fields(config, head_dim) | {
        "norm": "layer",
        "norm_bias": True,
        "norm_eps": config.get("layer_norm_eps", 1e-12),
        "norm_placement": "sums",
        "tie_word_embeddings": False,
        "rope_parameters": {},
        "rotary_dim": head_dim,
        "type_vocab_size": config.get("type_vocab_size") or 0,
        "bidirectional": True,
    }
    if "activation" not in family:
        fields["activation"] = activation(config.get("hidden_act", "gelu"))
    return EncoderConfig(**(fields | family))
