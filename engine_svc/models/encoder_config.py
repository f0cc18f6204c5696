"""The shape of an encoder, and of the classification heads on models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from engine_svc.models.config import ModelConfig, activation, common_fields
from engine_svc.ops.base import PlainActivation

# Prefixes that ModelConfig.renames gives to a checkpoint's names: of tensors that are not loaded, and of a head's.
NOBODYS = "nobodys."
HEAD = "pooling_head."

HeadActivation = PlainActivation | Literal["tanh", "none"]


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(ModelConfig):
    """An encoder, in which all tokens see each other. Encoders without learned positions have rotary ones."""

    type_vocab_size: int = 0
    norms_first_layer: bool = True  # whether the first layer has a norm before its attention
    has_norm: bool = False
    has_head: bool = False


@dataclass(frozen=True)
class HeadLayer:
    """A linear layer of a head, and the activation and norm after it."""

    size: int  # outputs
    activation: HeadActivation = "none"
    bias: bool = True
    norm_epsilon: float | None = None  # of a layer norm after it; None means that there is none
    norm_bias: bool = True


@dataclass(frozen=True)
class HeadConfig:
    """A classification head on pooled hidden states, or on those of each token."""

    layers: tuple[HeadLayer, ...]
    renames: tuple[tuple[str, str], ...]  # like ModelConfig.renames, to names that begin with HEAD
    pooling: str  # as in the model's own code: CLS, LAST or MEAN; for tokens ALL or STEP


def head_activation(name: str) -> HeadActivation:
    """A head's activation by its name in config.json.

    Raises:
        StartupError: it is not supported.
    """
    if name == "tanh":
        return "tanh"
    found = activation(name)
    assert isinstance(found, str)
    return found


def encoder_config(config: Mapping[str, Any], **family: Any) -> EncoderConfig:
    """A configuration of the fields that most encoders name alike; the family's own fields take precedence."""
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
