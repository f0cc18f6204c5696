"""A checkpoint's config.json as the models need it. Read as data: no code of a checkpoint ever runs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from engine_svc.layers.fused_experts import FusedForm
from engine_svc.layers.part import Layout
from engine_svc.ops.base import Activation, Scoring
from quire.errors import StartupError

# Names of config.json, of which some mean the same.
_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu", "swish": "silu", "swiglu": "silu", "gelu": "gelu", "gelu_python": "gelu", "relu": "relu",
    "relu2": "relu2", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh", "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh", "gelu_python_tanh": "gelu_tanh",
}  # fmt: skip
# What the first Phi 3 called it.
_ROPE_TYPES = {"su": "longrope"}
# The base of rotations, of families that do not have 10,000 where a configuration says nothing.
_THETAS = {
    "CohereForCausalLM": 5e5, "Ernie4_5ForCausalLM": 5e5, "Ernie4_5_MoeForCausalLM": 5e5, "FlexOlmoForCausalLM": 5e5,
    "GptOssForCausalLM": 1.5e5, "HeliumForCausalLM": 1e5, "Lfm2ForCausalLM": 1e6, "Lfm2MoeForCausalLM": 1e6,
    "Llama4ForCausalLM": 5e5, "MiniMaxForCausalLM": 1e6, "MiniMaxM1ForCausalLM": 1e6, "MiniMaxM2ForCausalLM": 5e6,
    "MiniMaxText01ForCausalLM": 1e6, "MixtralForCausalLM": 1e6, "Olmo3ForCausalLM": 5e5, "PhiMoEForCausalLM": 1e6,
    "PhimoeForCausalLM": 1e6, "SmolLM3ForCausalLM": 2e6,
}  # fmt: skip

NormPlacement = Literal["before", "after", "around", "parallel", "parallel norms", "alone", "sums", "residual"]


@dataclass(frozen=True)
class MoeConfig:
    """A mixture of experts."""

    num_experts: int
    experts_per_token: int
    expert_size: int  # features inside one expert
    renormalize: bool  # the chosen experts' weights are made to sum to one
    shared_size: int | None = None  # features of one more expert, that all tokens go through
    shared_gate: bool = False  # how much of it, each token decides
    scoring: Scoring = "softmax"
    choice_bias: bool = False  # learned, helps to choose and does not count
    num_groups: int = 1  # the experts of the best `chosen_groups` groups can be chosen
    chosen_groups: int = 1
    scale: float = 1.0  # on the chosen experts' weights
    near: float = 0.0  # of sparsemixer, see Routing
    router_bias: bool = False
    weighs_inputs: bool = False  # what an expert counts is on its inputs
    activation: Activation | None = None  # of experts; None: that of the other layers
    expert_bias: bool = False
    fused: FusedForm = FusedForm()  # of a checkpoint's tensors that hold all experts
    is_gated: bool = True  # experts, also the shared one; else they have no gate, and up and down alone
    latent_size: int | None = None  # of what the experts take and give, where hidden states are brought to it and back


@dataclass(frozen=True)
class Temperature:
    """How queries grow with their positions: times log(1 + floor((position + 1) / floor)) * growth + 1 (Llama 4)."""

    floor: float
    growth: float


@dataclass(frozen=True)
class LatentConfig:
    """Compressed attention: keys and values of all heads are made from one short vector, which is what is cached."""

    query_rank: int | None  # queries are made by way of so many values; None: directly
    rank: int  # of the vector
    plain_dim: int  # values of a head's key that are not rotated
    rotated_dim: int  # and that are; these are the same for all heads, and cached with the vector
    value_dim: int


@dataclass(frozen=True, kw_only=True)
class MambaConfig:
    """A selective state space with a rate for each channel and value of its state, in place of attention."""

    channels: int
    state_size: int
    taps: int  # tokens that the convolution before it sees
    rank: int  # time steps are made by way of so many values
    bias: bool  # of the projections in and out
    convolution_bias: bool
    norms: Literal["none", "learned", "plain"] = "none"  # of what time steps, writes and reads are made of
    norm_epsilon: float


@dataclass(frozen=True, kw_only=True)
class Mamba2Config:
    """One with a rate for each head."""

    heads: int
    head_dim: int
    groups: int  # of heads that write and read by the same values
    state_size: int
    taps: int
    bias: bool
    convolution_bias: bool
    output_bias: bool | None = None  # of the projection out; None: as `bias`
    time_limits: tuple[float, float] = (0.0, math.inf)
    # Of what comes out: with the gate before it, or behind it; none: the gate alone.
    norm: Literal["gates_first", "norm_first", "none"] = "gates_first"
    norm_epsilon: float
    # What gates, values, writes, reads and time steps are times, as they are projected.
    multipliers: tuple[float, float, float, float, float] = (1.0,) * 5


@dataclass(frozen=True, kw_only=True)
class DeltaNetConfig:
    """Linear attention whose states fade and are corrected by what they know (the gated delta rule)."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    taps: int
    norm_epsilon: float
    # Headwise: checkpoints have what goes with a key head side by side. Apart: queries, keys and values by themselves.
    # Kimi: so too, and each value of a key has a time step.
    form: Literal["joined", "headwise", "apart", "kimi"]
    strongest: float = 1.0  # see DeltaParameters


@dataclass(frozen=True, kw_only=True)
class ShortConvolutionConfig:
    """A convolution between two gates."""

    taps: int
    bias: bool  # of the projections and the convolution


@dataclass(frozen=True, kw_only=True)
class LightningConfig:
    """Linear attention whose states fade at a rate of each head that is not learned."""

    heads: int
    head_dim: int
    pace: float  # on the heads' rates, of this layer


@dataclass(frozen=True, kw_only=True)
class GatedUnitsConfig:
    """Channels that fade as their gates say, behind a convolution and beside what goes through an activation."""

    channels: int
    heads: int  # the gates of each are made of its own channels
    taps: int
    activation: Activation


RecurrentConfig = (
    MambaConfig | Mamba2Config | DeltaNetConfig | ShortConvolutionConfig | LightningConfig | GatedUnitsConfig
)


@dataclass(frozen=True, kw_only=True)
class Multipliers:
    """Of the parts of layers that attend and have a recurrent layer beside that (Falcon H1)."""

    attention: tuple[float, float]  # on what goes in, and on what comes out
    recurrent: tuple[float, float]
    mlp: tuple[float, float]  # on the gate before its activation, and on what comes out


@dataclass(frozen=True, kw_only=True)
class Balance:
    """Of layers whose residual is what their norms put out: what that is times, and what is added to it (MiniMax)."""

    attention: tuple[float, float]
    recurrent: tuple[float, float]
    mlp: tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """What the engine must know of any model, whoever runs its layers."""

    architecture: str
    dtype: str  # of the checkpoint
    vocab_size: int
    hidden_size: int
    embedding_size: int | None = None  # of what it looks up for a token, where that is brought to hidden_size and back
    num_layers: int
    max_position_embeddings: int
    num_positions: int = 0  # in a table of embeddings that are added to those of tokens; 0 for none
    rope_parameters: Mapping[str, Any]
    sliding_windows: tuple[int | None, ...]  # of each layer
    # A sequence may have so many tokens: with more, the model attends to some that it chooses, which is not supported.
    dense_length: int | None = None
    recurrent: Mapping[int, RecurrentConfig] = field(default_factory=dict)  # by layer: those that keep a state
    attending: frozenset[int] | None = None  # None: all but those

    @property
    def attention_windows(self) -> dict[int, int | None]:
        """Sliding windows by layer, of those that attend."""
        return {layer: window for layer, window in enumerate(self.sliding_windows) if self.attends(layer)}

    def attends(self, layer: int) -> bool:
        """Whether it caches keys and values."""
        return layer not in self.recurrent if self.attending is None else layer in self.attending


@dataclass(frozen=True, kw_only=True)
class ModelConfig(ModelFacts):
    """The shape of a decoder-only model; the defaults are Llama's."""

    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm: Literal["rms", "layer"] = "rms"  # what is divided by: the root mean square, or the deviation from the mean
    norm_eps: float
    norm_bias: bool = False  # of layer norms
    norm_weight: bool = True  # the same: else checkpoints have none, and it is one
    has_norm: bool = True  # behind the last layer
    tie_word_embeddings: bool
    activation: Activation
    moe: tuple[MoeConfig | None, ...]  # of each layer; None: dense
    local_rope_parameters: Mapping[str, Any] | None = None  # of layers with a window, where they have their own
    rotary_dim: int  # values of a head that are rotated
    attention_scale: float
    attention_softcap: float | None = None
    logits_softcap: float | None = None
    embedding_scale: float = 1.0  # on what is looked up, as far as the model's type holds it
    embedding_multiplier: float = 1.0  # on that, and on embeddings that are given
    logits_scale: float = 1.0
    embedding_norm: bool = False
    qkv_bias: bool = False
    qkv_clip: float | None = None  # queries, keys and values are no farther from 0
    qkv_layout: Layout = Layout()  # in tensors of a checkpoint that hold queries, keys and values as one
    output_bias: bool = False  # of the attention's output projection
    mlp_bias: bool = False
    mlp_gated: bool = True
    mlp_up_first: bool = False  # in tensors of a checkpoint that hold gate and up as one
    mlp_output_bias: bool | None = None  # None: as mlp_bias
    mlp_has_up: bool = False  # without gates, checkpoints call the matrices up and down
    head_bias: bool = False  # of the output layer, where it is not tied
    has_head: bool = True  # an output layer, which makes logits
    # Of queries and keys: each head, before or after its rotation; each by weights of its own; or all heads as one.
    # Weightless: each head, in layers that rotate.
    qk_norm: Literal["none", "head", "rotated", "each", "all", "weightless"] = "none"
    attention_sinks: bool = False  # see AttentionOptions
    attention_slopes: tuple[float, ...] = ()  # the same, of all heads; empty: none
    bidirectional: bool = False  # the same
    gates_attention: bool = False  # a gate for each value of its output
    gates_heads: bool = False  # one for each head's
    windows_are_chunks: bool = False
    temperature: Temperature | None = None  # of layers that do not rotate
    rope_interleaved: bool = False  # neighbouring values are rotated with each other, not those half a head apart
    no_rope_layers: frozenset[int] = frozenset()  # that do not rotate
    first_position: int = 0  # in the table of positions, that is the first token's
    positions_are_waves: bool = False  # sines and cosines, which no checkpoint has; else they are learned
    # Of attention and feed-forward. Parallel: one norm before both, which then do not see each other, or one before
    # each. Alone: before what is all of a layer: one of them, or recurrent. Sums: of what they put out and what went
    # in. Residual: before, and what a norm puts out is what is added to.
    norm_placement: NormPlacement = "before"
    recurrent_norm_placement: NormPlacement | None = None  # of recurrent layers, where theirs is another
    recurrent_name: str = "mixer"  # of these in checkpoints, as far as `module_names` and its like change nothing
    multipliers: Multipliers | None = None
    balance: Balance | None = None  # of residual norms
    norm_offset: float = 0.0  # what the checkpoint's norm weights lack
    latent: LatentConfig | None = None
    # Parts of names in the family's checkpoints that nothing is loaded from: of a model for images, say.
    ignored_names: tuple[str, ...] = ()
    # Expressions that match names in the family's checkpoints, and what takes their place, one after the other.
    renames: tuple[tuple[str, str], ...] = ()
    # Parts of names in the family's checkpoints, of matrices whose inputs stand below each other.
    transposed_names: tuple[str, ...] = ()
    module_names: Mapping[str, str] = field(
        default_factory=dict
    )  # in the family's checkpoints → ours, where they differ


def without_windows(config: ModelConfig) -> ModelConfig:
    """For contexts that are no longer than any of its sliding windows, which hide nothing there.

    Where layers with a window have rotary settings of their own, they keep both.
    """
    if config.local_rope_parameters:
        return config
    return dataclasses.replace(config, sliding_windows=(None,) * config.num_layers)


def common_fields(config: Mapping[str, Any], head_dim: int) -> dict[str, Any]:
    """What nearly all models name alike, encoders too; their layers attend to all, and are dense."""
    heads, layers = config["num_attention_heads"], config["num_hidden_layers"]
    return {
        "architecture": config["architectures"][0],
        "dtype": config.get("dtype") or config.get("torch_dtype") or "float32",
        "vocab_size": config["vocab_size"],
        "hidden_size": config["hidden_size"],
        "intermediate_size": config["intermediate_size"],
        "num_layers": layers,
        "num_heads": heads,
        "num_kv_heads": heads,
        "head_dim": head_dim,
        "max_position_embeddings": config["max_position_embeddings"],
        "attention_scale": head_dim**-0.5,
        "sliding_windows": (None,) * layers,
        "moe": (None,) * layers,
    }


def base_config(config: Mapping[str, Any], **family: Any) -> ModelConfig:
    """The fields that most families name alike, and those that the family gives.

    Raises:
        StartupError: they do not go together.
    """
    heads = config["num_attention_heads"]
    head_dim = family.get("head_dim") or config.get("head_dim") or config["hidden_size"] // heads
    parameters = rope_parameters(config)
    fields = common_fields(config, head_dim) | {
        "num_kv_heads": config.get("num_key_value_heads") or heads,
        "norm_eps": config.get("rms_norm_eps", 1e-6),
        "tie_word_embeddings": config.get("tie_word_embeddings", False),
        "rope_parameters": parameters,
        "rotary_dim": int(head_dim * (parameters.get("partial_rotary_factor") or 1.0)),
    }
    if "activation" not in family:
        fields["activation"] = activation(config.get("hidden_act", "silu"))
    found = ModelConfig(**(fields | family))
    if found.tie_word_embeddings and found.head_bias:
        raise StartupError("config.json says tie_word_embeddings, which is not supported of outputs that have a bias.")
    return found


def by_common_names(config: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """A configuration, with fields that it calls otherwise by the names that most families have, too.

    Args:
        names: the configuration's → the others.
    """
    return {ours: config[own] for own, ours in names.items() if config.get(own) is not None} | dict(config)


def activation(name: str) -> Activation:
    """The feed-forward layer's activation.

    Raises:
        StartupError: it is none that is supported.
    """
    if name not in _ACTIVATIONS:
        raise StartupError(f"The activation {name!r} is not supported; supported are {', '.join(_ACTIVATIONS)}.")
    return _ACTIVATIONS[name]


def rope_parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    """Rotary settings, from `rope_parameters` (Transformers 5), or `rope_scaling` (4) and fields beside it.

    Raises:
        StartupError: they differ between layers, and the family does not know how.
    """
    found = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    found = {name: value for name, value in found.items() if value is not None}  # some write null for what they lack
    if any(isinstance(value, Mapping) for value in found.values()):
        raise StartupError("rope_parameters that differ between layers are not supported.")
    found.setdefault("rope_type", found.pop("type", "default"))
    found["rope_type"] = _ROPE_TYPES.get(found["rope_type"], found["rope_type"])
    for name, value in found.items():
        if name != "rope_type" and isinstance(value, str):
            raise StartupError(f"rope_parameters has the {name} {value!r}, which is not a number.")
    found.setdefault("rope_theta", theta_of(config))
    if config.get("partial_rotary_factor") and not found.get("partial_rotary_factor"):
        found["partial_rotary_factor"] = config["partial_rotary_factor"]
    return found


def windows_by_type(config: Mapping[str, Any]) -> tuple[int | None, ...]:
    """Sliding windows of the Qwen families: by layer_types, or on the layers from max_window_layers on."""
    count, window = config["num_hidden_layers"], config.get("sliding_window")
    if not config.get("use_sliding_window") or window is None:
        return (None,) * count
    types = config.get("layer_types")
    if types:
        return tuple(window if kind == "sliding_attention" else None for kind in types)
    first = config.get("max_window_layers", 28)
    return tuple(window if index >= first else None for index in range(count))


def sliding_windows(config: Mapping[str, Any], pattern: int) -> tuple[int | None, ...]:
    """Of each layer: by layer_types, or else on all but every `pattern`th."""
    window, count = config.get("sliding_window"), config["num_hidden_layers"]
    types = config.get("layer_types")
    sliding = [kind == "sliding_attention" for kind in types or ()] or [
        bool((index + 1) % pattern) for index in range(count)
    ]
    return tuple(window if each else None for each in sliding)


def one_rotation(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration whose rotation differs by the layers' type, with that of layers without window only."""
    found = config.get("rope_parameters") or {}
    return dict(config) | ({"rope_parameters": found["full_attention"]} if "full_attention" in found else {})


def theta_of(config: Mapping[str, Any]) -> float:
    """What is written beside the other fields, or what the family's configurations have where they say nothing."""
    theta: float | None = config.get("rope_theta")
    if theta is not None:
        return theta
    architecture, *_ = config.get("architectures") or ("",)
    return _THETAS.get(architecture, 10000.0)


def local_rotation(config: Mapping[str, Any], theta: float) -> dict[str, Any]:
    """Rotary settings of layers with a window.

    Args:
        theta: where the configuration has none for them.
    """
    found = config.get("rope_parameters") or {}
    if "sliding_attention" in found:
        return rope_parameters({"rope_parameters": found["sliding_attention"]})
    return {"rope_type": "default", "rope_theta": theta}
