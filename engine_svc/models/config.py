"""A checkpoint's config.json in the form that the models need. It is only data: no code of a checkpoint ever runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from engine_svc.layers.fused_experts import FusedForm
from engine_svc.layers.part import Layout
from engine_svc.models.compression_config import CompressionConfig, StreamsConfig
from engine_svc.models.gemma_config import AltUpConfig, TokenInputsConfig
from engine_svc.models.latent_config import BlockIndexerConfig, IndexerConfig, LatentConfig
from engine_svc.models.pruned_config import Pruned
from engine_svc.models.recurrent_config import RecurrentConfig
from engine_svc.ops.base import Activation, LearnedActivation, Scoring
from quire.errors import StartupError

# Activations by their names in config.json; several names may mean the same.
_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu", "swish": "silu", "swiglu": "silu", "gelu": "gelu", "gelu_python": "gelu", "relu": "relu",
    "relu2": "relu2", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh", "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh", "gelu_python_tanh": "gelu_tanh",
}  # fmt: skip
# Older names of rope types, as in the first Phi 3.
_ROPE_TYPES = {"su": "longrope"}
# Default rotary base of the families for which it is not 10,000 if the configuration does not say.
_THETAS = {
    "ApertusForCausalLM": 1.2e7, "BailingHybridForCausalLM": 6e6, "BailingMoeV3ForCausalLM": 6e6,
    "CohereForCausalLM": 5e5, "CwmForCausalLM": 1e6, "Ernie4_5ForCausalLM": 5e5, "Ernie4_5_MoeForCausalLM": 5e5,
    "FlexOlmoForCausalLM": 5e5, "GptOssForCausalLM": 1.5e5, "HYV3ForCausalLM": 11158840.0, "HeliumForCausalLM": 1e5,
    "Lfm2ForCausalLM": 1e6, "Lfm2MoeForCausalLM": 1e6, "Llama4ForCausalLM": 5e5, "LongcatFlashForCausalLM": 1e7,
    "MellumForCausalLM": 5e5, "MiniMaxForCausalLM": 1e6, "MiniMaxM1ForCausalLM": 1e6, "MiniMaxM2ForCausalLM": 5e6,
    "MiniMaxM3VLForCausalLM": 5e6,
    "MiniMaxText01ForCausalLM": 1e6, "Ministral3ForCausalLM": 1e6, "MixtralForCausalLM": 1e6, "Olmo3ForCausalLM": 5e5,
    "PhiMoEForCausalLM": 1e6, "PhimoeForCausalLM": 1e6, "SmolLM3ForCausalLM": 2e6, "SolarOpenForCausalLM": 1e6,
}  # fmt: skip

NormPlacement = Literal[
    "before", "after", "around", "around, scaled", "parallel", "parallel norms", "alone", "sums", "residual", "cross",
    "streams", "around, streams", "pairs", "before, gated", "around, growing",
]  # fmt: skip
# See ModelConfig.attention_gates.
GateKind = Literal[
    "none", "queries", "values", "values, head biases", "heads", "values, softplus", "heads, softplus"
]  # fmt: skip


class Blending(NamedTuple):
    """Residual sums that are mixed with those before an earlier layer (Solar Pro)."""

    sources: Mapping[int, int]  # layer before which they are mixed → the earlier layer
    weight: float  # of the earlier sums; the others have the rest of one


class LayerHeads(NamedTuple):
    """The heads of a layer's attention."""

    number: int  # of keys and values
    size: int
    queries: int  # number of query heads


@dataclass(frozen=True)
class MoeConfig:
    """The shape of a mixture of experts."""

    num_experts: int
    experts_per_token: int
    expert_size: int  # features inside one expert
    renormalize: bool  # whether the chosen experts' weights are normalized to sum to one
    shared_size: int | None = None  # features of the expert that all tokens go through; None means there is none
    shared_gate: bool = False  # whether each token has a gate on the shared expert's output
    shared_scale: float = 1.0  # factor on the shared expert's output
    scoring: Scoring = "softmax"
    choice_bias: bool = False  # a learned bias that affects the choice of experts but not their weights
    default_bias: float | None = None  # if a checkpoint lacks that bias; None means it must have it
    num_groups: int = 1  # only experts of the best `chosen_groups` groups can be chosen
    chosen_groups: int = 1
    scale: float = 1.0  # factor on the chosen experts' weights
    near: float = 0.0  # of sparsemixer, see Routing
    router_bias: bool = False
    logits_softcap: float | None = None  # of the router's logits
    weighs_inputs: bool = False  # an expert's weight multiplies its inputs instead of its outputs
    expert_scales: bool = False  # each expert has a learned factor on its weight
    output_norm: bool = False  # of the sum of all experts' outputs
    output_bias: bool = False  # on that sum
    beside_dense: bool = False  # the layer also has a dense feed-forward part, and both outputs are added
    activation: Activation | None = None  # of experts; None means that of the other layers
    shared_activation: Activation | None = None  # of the shared expert; the same
    expert_bias: bool = False
    fused: FusedForm = FusedForm()  # of a checkpoint's tensors that hold all experts
    is_gated: bool = True  # whether experts, including the shared one, have a gate; else they have only up and down
    table_tokens: int | None = None  # tokens in the table that says which experts each one goes through; None: no table
    idle_experts: int | None = None  # further experts, which return their inputs
    latent_size: int | None = None  # size of experts' inputs and outputs, if hidden states are projected to it and back


@dataclass(frozen=True)
class Temperature:
    """Scales queries by position, with factor log(1 + floor(position / floor)) * growth + 1 (Llama 4)."""

    floor: float
    growth: float
    rotating: bool = False  # of layers that rotate; else of those that do not, which count positions from one
    is_power: bool = False  # the factor is (1 + position / floor) ** growth instead (Beam)


@dataclass(frozen=True, kw_only=True)
class Multipliers:
    """Factors in layers with attention and a recurrent layer in parallel (Falcon H1)."""

    attention: tuple[float, float]  # on inputs and on outputs
    recurrent: tuple[float, float]
    mlp: tuple[float, float]  # on the gate before its activation, and on outputs


@dataclass(frozen=True, kw_only=True)
class Balance:
    """Factors on (residual, added output) in layers whose residual is the output of their norms (MiniMax)."""

    attention: tuple[float, float]
    recurrent: tuple[float, float]
    mlp: tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """What the engine must know of any model, no matter whose code runs its layers."""

    architecture: str
    dtype: str  # of the checkpoint
    vocab_size: int
    hidden_size: int
    embedding_size: int | None = None  # size of token embeddings, if they are projected to hidden_size and back
    num_layers: int
    max_position_embeddings: int
    num_positions: int = 0  # rows of the table of position embeddings, which are added to those of tokens; 0 means none
    rope_parameters: Mapping[str, Any]
    sliding_windows: tuple[int | None, ...]  # of each layer
    # Tokens at the beginning of each sequence that stand for an encoder's output, to which layers attend apart from
    # text (encoder-decoder models); and the rows of that output, which are fewer. Text is no longer than these.
    encoder_tokens: int = 0
    encoder_rows: int = 0
    # Frames of a recording that each token of a sequence hears, from the first token on: their embedding is added to
    # the token's (Voxtral Realtime). 0 means that embeddings take the place of a prompt's tokens.
    frames_per_token: int = 0
    # Tokens of an image, if they attend to all of it, also to those after them: one step must compute the whole image.
    whole_image_tokens: int = 0
    windows_on_whole_images: bool = False  # then they do so in layers with a window only
    recurrent: Mapping[int, RecurrentConfig] = field(default_factory=dict)  # by layer, for layers that keep a state
    # Layers without keys and values of their own → the earlier layer whose keys and values they attend to. They are the
    # last ones of the model.
    borrowed: Mapping[int, int] = field(default_factory=dict)
    attending: frozenset[int] | None = None  # layers that attend; None means all that are not recurrent
    compressed_layers: frozenset[int] = frozenset()  # layers that also cache entries, each of which stands for tokens
    stream_count: int = 1  # streams of hidden_size values that layers pass on; see StreamsConfig and AltUpConfig
    keeps_all_rows: bool = False  # whether the last layer needs all rows, not only those that tokens are sampled from

    @property
    def passed_size(self) -> int:
        """Values of a token that layers pass on to the next ones."""
        return self.hidden_size * self.stream_count

    @property
    def attention_windows(self) -> dict[int, int | None]:
        """Sliding windows of the layers that cache keys and values, by layer; none for entries (see entries_of)."""
        found = enumerate(self.sliding_windows)
        own = {layer: window for layer, window in found if self.attends(layer) and layer not in self.borrowed}
        return own | {self.entries_of(layer): None for layer in self.compressed_layers}

    def caching(self, layers: Iterable[int]) -> frozenset[int]:
        """What of `attention_windows` belongs to these layers."""
        own = frozenset(layers)
        return own | {self.entries_of(layer) for layer in own & self.compressed_layers}

    def entries_of(self, layer: int) -> int:
        """The number that stands for a layer's compressed entries among those of layers that cache something."""
        return self.num_layers + layer

    def attends(self, layer: int) -> bool:
        """Whether a layer attends; then it caches keys and values, unless it borrows another layer's."""
        return layer not in self.recurrent if self.attending is None else layer in self.attending


@dataclass(frozen=True, kw_only=True)
class ModelConfig(ModelFacts):
    """The shape of a decoder-only model; the defaults are Llama's."""

    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm: Literal["rms", "layer"] = "rms"  # RMSNorm or LayerNorm
    norm_eps: float
    norm_bias: bool = False  # of layer norms
    norm_weight: bool = True  # False means that checkpoints have none, and it is one
    has_norm: bool = True  # after the last layer
    last_norm_eps: float | None = None  # of that norm; None means norm_eps
    tie_word_embeddings: bool
    activation: Activation | LearnedActivation  # a learned one only in dense layers without gates
    moe: tuple[MoeConfig | None, ...]  # of each layer; None means a dense one
    local_rope_parameters: Mapping[str, Any] | None = None  # of layers with a window, if they have their own
    local_heads: LayerHeads | None = None  # the same
    own_heads: Mapping[int, LayerHeads] = field(default_factory=dict)  # of single layers that have their own
    dtype_keeping_layers: frozenset[int] = frozenset()  # see --kv-cache-dtype-skip-layers
    rotary_dim: int  # values of a head that are rotated
    attention_scale: float
    attention_softcap: float | None = None
    logits_softcap: float | None = None
    embedding_scale: float = 1.0  # on embeddings that are looked up; rounded to the model's dtype
    embedding_multiplier: float = 1.0  # on these and on embeddings that are given
    feature_scale: float = 1.0  # on features of images that are added between layers
    # Layers before which these are added, in the order in which the encoder returns them. None: from the second one on.
    feature_layers: tuple[int, ...] | None = None
    logits_scale: float = 1.0
    embedding_norm: bool = False
    token_inputs: TokenInputsConfig | None = None
    qkv_bias: bool = False
    key_bias: bool = True  # whether keys have a bias too
    qkv_clip: float | None = None  # queries, keys and values are clipped to this absolute value
    qkv_layout: Layout = Layout()  # of checkpoint tensors that hold queries, keys and values together
    # Module in checkpoints with the key and the value of each head beside each other, apart from queries; empty: none.
    key_values_name: str = ""
    output_bias: bool = False  # of the attention's output projection
    own_sizes: Mapping[int, int] = field(default_factory=dict)  # intermediate_size of layers where it differs
    # Below how many standard deviations over their mean gates become zero, of layers that have such a limit (Gemma 3n).
    gate_cutoffs: Mapping[int, float] = field(default_factory=dict)
    blending: Blending | None = None
    pruned: Mapping[int, Pruned] = field(default_factory=dict)  # layers that lack attention or feed-forward
    mlp_bias: bool = False
    mlp_gated: bool = True
    mlp_up_first: bool = False  # in checkpoint tensors that hold gate and up together
    mlp_output_bias: bool | None = None  # None means as mlp_bias
    mlp_has_up: bool = False  # without gates, whether checkpoints call the matrices up and down
    head_bias: bool = False  # of the output layer, if it is not tied
    # Whether rows of the output layer's weights, one for each token, or columns are scaled to length one when loaded.
    head_norm: Literal["none", "rows", "columns"] = "none"
    has_head: bool = True  # whether there is an output layer, which computes logits
    # Norms of queries and keys. Head: of each head, before its rotation; rotated: after it. Each: of each head, with
    # its own weights. All: of all heads as one vector. Weightless: of each head, without weights, if the layer rotates.
    qk_norm: Literal["none", "head", "rotated", "each", "all", "weightless"] = "none"
    value_norm: bool = False  # whether each head of the values is normalized too, without weights
    keys_are_values: bool = False  # layers without a window project values like keys, with the same matrix
    attention_sinks: Literal["none", "windowed", "all"] = "none"  # layers that have them, see AttentionOptions
    value_dim: int | None = None  # values of a head's value, if they are fewer than head_dim
    value_scale: float = 1.0  # on values, if they are fewer
    attention_slopes: tuple[float, ...] = ()  # of all heads, see AttentionOptions; empty means none
    bidirectional: bool = False  # see AttentionOptions
    # Gates on the attention's output. Queries: one for each value, from the projection of queries; values: one for each
    # value, from a projection of their own, with a bias for each head or none; heads: one for each head, from a
    # projection of their own. The output is multiplied by their sigmoid, or by their softplus.
    attention_gates: GateKind = "none"
    query_experts: bool = False  # experts project queries and outputs of attention, see models/expert_heads.py
    windows_are_chunks: bool = False
    temperature: Temperature | None = None
    rope_interleaved: bool = False  # neighboring values are rotated with each other, not those half a head apart
    no_rope_layers: frozenset[int] = frozenset()  # layers that do not rotate
    first_position: int = 0  # the first text token's row in the table of positions
    positions_are_waves: bool = False  # position embeddings are sines and cosines, not in checkpoints; else learned
    # Where the norms of attention and feed-forward are. Parallel: one norm before both, which run side by side;
    # parallel norms: one before each. Alone: before the only part of a layer, which is one of them or recurrent. Sums:
    # of the sum of input and output. Residual: before, and the norm's output is the residual that is added to. Cross:
    # before, and also before the attention to an encoder's output. Around, scaled: see models/gemma4_layer.py. Streams:
    # before; see models/streams.py. Around, streams: see models/altup.py. Pairs: before; see models/paired_layer.py.
    # Before, gated: see models/gated_norm.py. Around, growing: see models/growing_sums.py.
    norm_placement: NormPlacement = "before"
    recurrent_norm_placement: NormPlacement | None = None  # of recurrent layers, if it differs
    recurrent_name: str = "mixer"  # name of recurrent layers in checkpoints, after `module_names` and `renames`
    multipliers: Multipliers | None = None
    balance: Balance | None = None  # of residual norms
    # Tokens by which a text is behind the recording that it writes down: the norms before feed-forward depend on it.
    delay_tokens: int | None = None
    norm_gate_rank: int | None = None  # values inside the gates of norms, if these have gates
    norm_offset: float = 0.0  # to be added to the checkpoint's norm weights
    output_norm_factor: float = 1.0  # on the weights of norms around attention and feed-forward that come after them
    latent: LatentConfig | None = None
    indexer: IndexerConfig | BlockIndexerConfig | None = None  # None means that layers attend to all positions
    compression: CompressionConfig | None = None
    # With neither of these, there is one stream, to which layers add their outputs.
    streams: StreamsConfig | None = None
    altup: AltUpConfig | None = None
    # Parts of names in the family's checkpoints that are not loaded, of a vision model for example.
    ignored_names: tuple[str, ...] = ()
    # Regular expressions for names in the family's checkpoints, and their replacements, applied one after the other.
    renames: tuple[tuple[str, str], ...] = ()
    # Parts of names in the family's checkpoints of transposed matrices, whose rows are the inputs.
    transposed_names: tuple[str, ...] = ()
    module_names: Mapping[str, str] = field(
        default_factory=dict
    )  # module names in the family's checkpoints → ours, where they differ


def heads_within(config: ModelConfig, window: int | None) -> LayerHeads:
    """The heads in layers with this window that have none of their own."""
    own = LayerHeads(config.num_kv_heads, config.head_dim, config.num_heads)
    return own if window is None or config.local_heads is None else config.local_heads


def windowed_rotation(config: ModelConfig) -> tuple[Mapping[str, Any], int]:
    """The rotary settings of layers with a window, and the number of a head's values that are rotated."""
    own, heads = config.local_rope_parameters, config.local_heads
    if not own:
        return config.rope_parameters, config.rotary_dim
    return own, int(heads.size * (own.get("partial_rotary_factor") or 1.0)) if heads else config.rotary_dim


def fixed_activation(config: ModelConfig) -> Activation:
    """The activation of a model in which no layer learns its own.

    Raises:
        ValueError: they do.
    """
    if config.activation == "xielu":
        raise ValueError("xielu is only supported in dense layers without gates")
    return config.activation


def without_windows(config: ModelConfig) -> ModelConfig:
    """The configuration without sliding windows, for contexts no longer than any window, where they hide nothing.

    If layers with a window have their own rotary settings, it is returned unchanged.
    """
    if config.local_rope_parameters:
        return config
    return dataclasses.replace(config, sliding_windows=(None,) * config.num_layers)


def without_indexer(config: ModelConfig) -> ModelConfig:
    """The configuration for contexts that an indexer chooses all positions of."""
    ignored = (*config.ignored_names, ".indexer.", ".self_attn.index_")  # the latter in MiniMax M3
    return dataclasses.replace(config, indexer=None, ignored_names=ignored)


def layer_apart(
    config: ModelConfig, moe: MoeConfig | None, window: int | None = None, *, rotates: bool = True
) -> ModelConfig:
    """The shape of one layer that attends and is not among the model's own, but like those with the same window.

    It has no indexer, and attends to all tokens in its window.
    """
    heads = heads_within(config, window)
    rotation, rotary_dim = windowed_rotation(config) if window else (config.rope_parameters, config.rotary_dim)
    alone = dataclasses.replace(
        config, num_layers=1, moe=(moe,), sliding_windows=(window,), num_heads=heads.queries,
        num_kv_heads=heads.number, head_dim=heads.size, local_heads=None, own_heads={}, rope_parameters=rotation,
        local_rope_parameters=None, rotary_dim=rotary_dim, no_rope_layers=frozenset(() if rotates else (0,)),
        recurrent={}, attending=None, ignored_names=(), dtype_keeping_layers=frozenset(),
    )  # fmt: skip
    return without_indexer(alone)


def attending_layer(config: ModelConfig) -> ModelConfig:
    """The shape of one layer that attends to all tokens, with experts if the model has any."""
    return layer_apart(config, next((moe for moe in reversed(config.moe) if moe is not None), None))


def common_fields(config: Mapping[str, Any], head_dim: int) -> dict[str, Any]:
    """Fields that nearly all models, encoders included, name alike. Defaults: no windows, no mixtures of experts."""
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
    """A configuration of the fields that most families name alike; the family's own fields take precedence.

    Raises:
        StartupError: the fields contradict each other.
    """
    heads = config["num_attention_heads"]
    head_dim = family.get("head_dim") or config.get("head_dim") or config["hidden_size"] // heads
    parameters = rope_parameters(config)
    fields = common_fields(config, head_dim) | {
        "num_kv_heads": config.get("num_key_value_heads") or heads,
        "norm_eps": config.get("rms_norm_eps", 1e-6),
        "tie_word_embeddings": config.get("tie_word_embeddings", False),
        "feature_layers": config.get("feature_layers"),
        "rope_parameters": parameters,
        "rotary_dim": int(head_dim * (parameters.get("partial_rotary_factor") or 1.0)),
    }
    if "activation" not in family:
        fields["activation"] = activation(config.get("hidden_act", "silu"))
    found = ModelConfig(**(fields | family))
    if found.tie_word_embeddings and found.head_bias:
        raise StartupError(
            "config.json sets tie_word_embeddings, which is not supported for an output layer with a bias."
        )
    return found


def by_common_names(config: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Adds to a configuration the common names of fields that it has under other names.

    Args:
        names: the configuration's name → the common name.
    """
    return {ours: config[own] for own, ours in names.items() if config.get(own) is not None} | dict(config)


def activation(name: str) -> Activation:
    """The feed-forward layer's activation by its name in config.json.

    Raises:
        StartupError: it is not supported.
    """
    if name not in _ACTIVATIONS:
        raise StartupError(f"The activation {name!r} is not supported; supported are {', '.join(_ACTIVATIONS)}.")
    return _ACTIVATIONS[name]


def rope_parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    """Rotary settings, from `rope_parameters` (Transformers 5), or `rope_scaling` (4) and separate fields.

    Raises:
        StartupError: they differ between layers, which the family does not handle; or one that must be a number is not.
    """
    found = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    found = {name: value for name, value in found.items() if value is not None}  # some write null for missing values
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


def sliding_windows(config: Mapping[str, Any], pattern: int, whole: int = -1) -> tuple[int | None, ...]:
    """Sliding window of each layer: by layer_types, or else on all but every `pattern`th layer.

    Args:
        whole: a layer without a window, from which the others are counted; -1 makes the `pattern`th layer the first.
    """
    window, count = config.get("sliding_window"), config["num_hidden_layers"]
    types = config.get("layer_types")
    sliding = [kind == "sliding_attention" for kind in types or ()] or [
        bool((index - whole) % pattern) for index in range(count)
    ]
    return tuple(window if each else None for each in sliding)


def one_rotation(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration whose rotation differs by layer type, reduced to the rotation of layers without a window."""
    found = config.get("rope_parameters") or {}
    return dict(config) | ({"rope_parameters": found["full_attention"]} if "full_attention" in found else {})


def theta_of(config: Mapping[str, Any]) -> float:
    """The rotary base: the configuration's own field, or the family's default."""
    theta: float | None = config.get("rope_theta")
    if theta is not None:
        return theta
    architecture, *_ = config.get("architectures") or ("",)
    return _THETAS.get(architecture, 10000.0)


def local_rotation(config: Mapping[str, Any], theta: float) -> dict[str, Any]:
    """Rotary settings of layers with a window.

    Args:
        theta: the base, if the configuration has no settings for these layers.
    """
    found = config.get("rope_parameters") or {}
    if "sliding_attention" in found:
        return rope_parameters({"rope_parameters": found["sliding_attention"]})
    return {"rope_type": "default", "rope_theta": theta}
