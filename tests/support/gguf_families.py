"""What llama.cpp's converter does to each family's tensors, and the metadata it writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import gguf
import numpy as np

ARCH = gguf.MODEL_ARCH


@dataclass(frozen=True)
class Piece:
    """A tensor of a GGUF file: some rows of a checkpoint's tensor, in another order, shape or form."""

    module: str = ""  # in llama.cpp's map, in place of the checkpoint's; "": that
    rows: np.ndarray | None = None
    columns: np.ndarray | None = None
    shape: tuple[int, ...] | None = None
    swapped: bool = False  # then the last two dimensions are exchanged
    factor: float | np.ndarray = 1.0  # for each row
    offset: float = 0.0  # that is added
    is_rate: bool = False  # of which the checkpoint has the logarithm


Config = Mapping[str, Any]
# (name in the checkpoint, shape, configuration) → what the file has of it; None: the tensor as it is
Pieces = Callable[[str, tuple[int, ...], Config], list[Piece] | None]


@dataclass(frozen=True)
class Family:
    """A model family of llama.cpp."""

    arch: gguf.MODEL_ARCH
    neighbours: bool = False  # rows of queries and keys are put side by side
    offset: float = 0.0  # that norms get added
    pieces: Pieces = lambda name, shape, config: None
    metadata: Callable[[Config], dict[str, Any]] = lambda config: {}
    renames: tuple[tuple[str, str], ...] = field(default=())
    newer: str = ""  # llama.cpp's name, where this gguf package lacks it; `arch` is then one with the same tensors

    @property
    def name(self) -> str:
        """llama.cpp's name."""
        return self.newer or gguf.MODEL_ARCH_NAMES[self.arch]


def _neighbours(shape: tuple[int, ...], heads: int) -> np.ndarray:
    return np.arange(shape[0]).reshape(heads, 2, -1).swapaxes(1, 2).ravel()


def side_by_side(name: str, shape: tuple[int, ...], config: Config) -> list[Piece] | None:
    """Rows of queries and keys, that rotate together."""
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    count = heads.get(name.split(".")[-2], 0)
    return [Piece(rows=_neighbours(shape, count))] if count else None


def _by_kind(groups_of: Callable[[Config], int]) -> Pieces:
    """Rearranges queries, keys and values of each head, or of each key head, to all queries, all keys, all values."""

    def pieces(name: str, shape: tuple[int, ...], config: Config) -> list[Piece] | None:
        if "query_key_value" not in name:
            return None
        size = config["hidden_size"] // config["num_attention_heads"]
        rows = np.arange(shape[0]).reshape(groups_of(config), -1, size)
        return [Piece(rows=np.concatenate([rows[:, :-2].ravel(), rows[:, -2].ravel(), rows[:, -1].ravel()]))]

    return pieces


def _mamba(name: str, shape: tuple[int, ...], config: Config) -> list[Piece] | None:
    """Mamba of either generation."""
    groups = next((config[key] for key in ("n_groups", "mamba_n_groups") if key in config), 1)
    if name.endswith("conv1d.weight"):
        return [Piece(shape=(shape[0], shape[-1]))]
    if name.endswith("A_log"):
        return [Piece(is_rate=True, shape=shape if len(shape) > 1 else (*shape, 1))]
    if name.endswith(".D"):
        is_first = config["model_type"] in ("mamba", "falcon_mamba", "jamba")
        return None if is_first else [Piece(shape=(*shape, 1))]
    if name.endswith(("mixer.norm.weight", "mamba.norm.weight")):
        return [Piece(shape=(groups, shape[0] // groups))]
    return None


def _falcon_h1(name: str, shape: tuple[int, ...], config: Config) -> list[Piece] | None:
    """Falcon H1: weights are multiplied by the model's multipliers."""
    inner, states = config["mamba_d_ssm"], config["mamba_n_groups"] * config["mamba_d_state"]
    sizes = [inner, inner, states, states, config["mamba_n_heads"]]
    steps = np.repeat(np.float32(config["ssm_multipliers"]), sizes)[:, None] * config["ssm_in_multiplier"]
    attended = config["attention_in_multiplier"]
    factors: dict[str, Any] = {
        "down_proj": config["mlp_multipliers"][1], "gate_proj": config["mlp_multipliers"][0], "q_proj": attended,
        "k_proj": attended * config["key_multiplier"], "v_proj": attended, "in_proj": steps,
        "o_proj": config["attention_out_multiplier"], "out_proj": config["ssm_out_multiplier"],
        "lm_head": config["lm_head_multiplier"], "embed_tokens": config["embedding_multiplier"],
    }  # fmt: skip
    module, kind = name.split(".")[-2:]
    is_output = module in ("down_proj", "o_proj", "out_proj")  # what they add is multiplied too
    factor = factors.get(module) if kind == "weight" or is_output else None
    return _mamba(name, shape, config) if factor is None else [Piece(factor=factor)]


def _latent(name: str, shape: tuple[int, ...], config: Config) -> list[Piece] | None:
    """Splits the projection from the cached vector into that to keys and that to values."""
    if not name.endswith("kv_b_proj.weight"):
        return None
    heads, plain, value = config["num_attention_heads"], config["qk_nope_head_dim"], config["v_head_dim"]
    rows = np.arange(shape[0]).reshape(heads, plain + value)
    return [
        Piece("self_attn.k_b_proj", rows[:, :plain].ravel(), shape=(heads, plain, shape[1]), swapped=True),
        Piece("self_attn.v_b_proj", rows[:, plain:].ravel(), shape=(heads, value, shape[1])),
    ]


def _kimi(name: str, shape: tuple[int, ...], config: Config) -> list[Piece] | None:
    if "_conv1d" in name:
        return [Piece(shape=(1, shape[0], 1, shape[-1]))]
    return [Piece(is_rate=True)] if name.endswith("A_log") else _latent(name, shape, config)


def _delta_net(name: str, shape: tuple[int, ...], config: Config) -> list[Piece] | None:
    """Qwen3-Next's delta nets: what is grouped by key head is separated."""
    keys, values = config["linear_num_key_heads"], config["linear_num_value_heads"]
    key, value = config["linear_key_head_dim"], config["linear_value_head_dim"] * values // keys
    if name.endswith("in_proj_qkvz.weight"):
        query, first, mixed, gate = np.split(
            np.arange(shape[0]).reshape(keys, -1), np.cumsum([key, key, value]), axis=1
        )
        together = np.concatenate([query.ravel(), first.ravel(), mixed.ravel()])
        return [Piece("linear_attn.in_proj_qkv", together), Piece("linear_attn.in_proj_z", gate.ravel())]
    if name.endswith("conv1d.weight"):
        return [Piece(shape=(shape[0], shape[-1]))]
    if name.endswith("linear_attn.norm.weight"):
        return [Piece()]  # which gets nothing added
    return [Piece(is_rate=True)] if name.endswith("A_log") else None


def _tiled(name: str, shape: tuple[int, ...], config: Config) -> list[Piece] | None:
    """Qwen3.5's delta nets: value heads are sorted by their index within their key head first."""
    if "linear_attn" not in name or name.endswith("norm.weight"):
        return _delta_net(name, shape, config)
    keys, values = config["linear_num_key_heads"], config["linear_num_value_heads"]
    behind = 2 * keys * config["linear_key_head_dim"] if "in_proj_qkv" in name or "conv1d" in name else 0
    is_out = name.endswith("out_proj.weight")
    rows = np.arange(behind, shape[int(is_out)]).reshape(keys, values // keys, -1).swapaxes(0, 1).ravel()
    rows = np.concatenate([np.arange(behind), rows])
    if is_out:
        return [Piece(columns=rows)]
    return [Piece(rows=rows, shape=(shape[0], shape[-1]) if "conv1d" in name else None, is_rate="A_log" in name)]


def _flat_convolutions(name: str, shape: tuple[int, ...], config: Config) -> list[Piece] | None:
    return [Piece(shape=(shape[0], shape[-1]))] if name.endswith("conv.conv.weight") else None


def _gate_and_up(name: str, shape: tuple[int, ...], config: Config) -> list[Piece] | None:
    """Granite's feed-forward layer, which may be beside experts."""
    if "shared_mlp" not in name:
        return side_by_side(name, shape, config)
    parent = "mlp.shared_expert" if config.get("num_local_experts") else "mlp"
    if "output_linear" in name:
        return [Piece(f"{parent}.down_proj")]
    gate, up = np.split(np.arange(shape[0]), 2)
    return [Piece(f"{parent}.gate_proj", gate), Piece(f"{parent}.up_proj", up)]


def _granite_hybrid(name: str, shape: tuple[int, ...], config: Config) -> list[Piece] | None:
    return _mamba(name, shape, config) if ".mamba." in name else _gate_and_up(name, shape, config)


def _of_state(config: Config, prefix: str = "") -> dict[str, Any]:
    """Metadata of the states of either generation of Mamba, regardless of the family's names for them."""

    def find(*names: str) -> Any:
        return next((config[each] for name in names for each in (prefix + name, name) if config.get(each)), None)

    inner, count = find("d_ssm"), find("n_heads", "num_heads")
    inner = inner or (count * find("d_head", "head_dim") if count else find("intermediate_size"))
    inner = config["mamba_expand"] * config["hidden_size"] if "mamba_dt_rank" in config else inner
    found = {
        "ssm.conv_kernel": find("d_conv", "conv_kernel"),
        "ssm.state_size": find("d_state", "state_size", "ssm_state_size"),
        "ssm.inner_size": inner, "ssm.time_step_rank": count or find("dt_rank", "time_step_rank"),
        "ssm.group_count": find("n_groups"),
    }  # fmt: skip
    return {name: value for name, value in found.items() if value is not None}


def _kv_heads(config: Config, count: int | None = None) -> dict[str, Any]:
    count = count or config["num_key_value_heads"]
    attends = [each in ("attention", "full_attention") for each in config["layer_types"]]
    return {"attention.head_count_kv": [count * each for each in attends]}


def _of_delta_net(config: Config) -> dict[str, Any]:
    return {
        "ssm.conv_kernel": config["linear_conv_kernel_dim"], "ssm.state_size": config["linear_key_head_dim"],
        "ssm.group_count": config["linear_num_key_heads"], "ssm.time_step_rank": config["linear_num_value_heads"],
        "ssm.inner_size": config["linear_value_head_dim"] * config["linear_num_value_heads"],
    }  # fmt: skip


def _of_latent(config: Config) -> dict[str, Any]:
    rank, rotated = config["kv_lora_rank"], config["qk_rope_head_dim"]
    found = {
        "attention.head_count_kv": 1, "attention.kv_lora_rank": rank, "attention.key_length": rank + rotated,
        "attention.value_length": rank, "attention.key_length_mla": config["qk_nope_head_dim"] + rotated,
        "attention.value_length_mla": config["v_head_dim"], "rope.dimension_count": rotated,
    }  # fmt: skip
    if config.get("q_lora_rank"):
        found["attention.q_lora_rank"] = config["q_lora_rank"]
    if growth := (config.get("rope_parameters") or {}).get("mscale_all_dim"):
        found["rope.scaling.yarn_log_multiplier"] = 0.1 * growth
    return found


def _grouped(config: Config) -> dict[str, Any]:
    sigmoid = config["model_type"] != "deepseek_v2"
    found = {
        "expert_shared_count": config.get("n_shared_experts") or config.get("num_shared_experts") or 0,
        "expert_weights_scale": config["routed_scaling_factor"], "expert_weights_norm": bool(sigmoid),
        "expert_gating_func": 2 if sigmoid else 1,
    }  # fmt: skip
    if "n_group" in config:
        found |= {"expert_group_count": config["n_group"], "expert_group_used_count": config["topk_group"]}
    return found


def _nemotron(config: Config) -> dict[str, Any]:
    found = _of_state(config, "mamba_") | _grouped(config) | {
        "attention.head_count_kv": [
            config["num_key_value_heads"] * ("attention" in kind and "linear" not in kind)
            for kind in config["layer_types"]
        ],
        "feed_forward_length": [config["moe_intermediate_size"] * (kind == "moe") for kind in config["layer_types"]],
        "expert_shared_feed_forward_length": config["moe_shared_expert_intermediate_size"],
    }  # fmt: skip
    return found | ({"moe_latent_size": config["moe_latent_size"]} if config.get("moe_latent_size") else {})


def _windows(config: Config) -> dict[str, Any]:
    slides = [kind == "sliding_attention" for kind in config["layer_types"]]
    return {"attention.sliding_window_pattern": slides} if any(slides) else {}


def _hunyuan(config: Config) -> dict[str, Any]:
    size, alpha = config["head_dim"], config["rope_parameters"]["alpha"]
    return {"rope.freq_base": 10000.0 * alpha ** (size / (size - 2)), "rope.scaling.type": "none"}


def _hunyuan_moe(config: Config) -> dict[str, Any]:
    return _hunyuan(config) | {"expert_used_count": config["moe_topk"], "expert_shared_count": 1}


def _ernie_moe(config: Config) -> dict[str, Any]:
    return {
        "expert_count": config["moe_num_experts"], "expert_used_count": config["moe_k"],
        "interleave_moe_layer_step": config["moe_layer_interval"],
        "expert_shared_count": config["moe_num_shared_experts"],
    }  # fmt: skip


def _granite_moe(config: Config) -> dict[str, Any]:
    shared = config.get("shared_intermediate_size")
    return {"expert_shared_feed_forward_length": shared} if shared else {}


def _of_granite_hybrid(config: Config) -> dict[str, Any]:
    rotates = config["model_type"] == "bamba"
    return _of_state(config, "mamba_") | _kv_heads(config) | _granite_moe(config) | {
        "rope.scaling.finetuned": rotates,
    }  # fmt: skip


def _llama4(config: Config) -> dict[str, Any]:
    return {
        "feed_forward_length": config["intermediate_size_mlp"],
        "expert_feed_forward_length": config["intermediate_size"],
    }


def _ministral3(config: Config) -> dict[str, Any]:
    rope = config["rope_parameters"]
    return {
        "attention.temperature_scale": rope["llama_4_scaling_beta"],
        "rope.scaling.yarn_log_multiplier": rope["mscale_all_dim"],
    }


def _gemma4(config: Config) -> dict[str, Any]:
    """Layers without a window have heads of their own; those that borrow keys and values may be wider."""
    layers = range(config["num_hidden_layers"])
    own = [config["per_layer_config"].get(str(layer), {}) for layer in layers]
    counts = [each.get("num_key_value_heads", config["num_key_value_heads"]) for each in own]
    whole, size = own[-1]["head_dim"], config["head_dim"]
    borrowing, width = config["num_kv_shared_layers"], config["intermediate_size"]
    widths = [width * (2 if layer >= len(layers) - borrowing else 1) for layer in layers]
    found = _windows(config) | {
        "attention.key_length": whole, "attention.value_length": whole, "attention.key_length_swa": size,
        "attention.value_length_swa": size, "rope.dimension_count": whole, "rope.dimension_count_swa": size,
        "attention.head_count_kv": counts if len({*counts}) > 1 else counts[0],
        "attention.shared_kv_layers": borrowing,
        "embedding_length_per_layer_input": config.get("hidden_size_per_layer_input", 0),
        "feed_forward_length": widths if config["use_double_wide_mlp"] else width,
    }  # fmt: skip
    return found | ({"expert_used_count": config["top_k_experts"]} if config.get("enable_moe_block") else {})


def _lfm2(config: Config) -> dict[str, Any]:
    length = {} if "moe_intermediate_size" in config else {"feed_forward_length": 64}
    return _kv_heads(config) | length | {"shortconv.l_cache": config["conv_L_cache"]}


def _of_indexer(config: Config) -> dict[str, Any]:
    return _of_latent(config) | _grouped(config) | {
        "attention.indexer.top_k": config["index_topk"], "attention.indexer.head_count": config["index_n_heads"],
        "attention.indexer.key_length": config["index_head_dim"],
    }  # fmt: skip


# Such that llama.cpp's map, which has only matrices, gives them their module's name.
_ROUTER = ((r"\.router\.scale$", ".router.proj.scale"), (r"\.router\.per_expert_scale$", ".experts.down_proj.scale"))
_SHARED_BIAS = (("e_score_correction_bias", "e_score_correction.bias"),)
_STEPS = ((r"\.dt_bias", ".dt_proj.bias"),)
_BACKBONE = _STEPS + _SHARED_BIAS


# model_type → how it is written.
FAMILIES: dict[str, Family] = {
    "llama": Family(ARCH.LLAMA, True),
    "ministral3": Family(ARCH.MISTRAL3, True, metadata=_ministral3),
    "mixtral": Family(ARCH.LLAMA, True),
    "apertus": Family(ARCH.APERTUS),
    "qwen2": Family(ARCH.QWEN2),
    "qwen2_moe": Family(ARCH.QWEN2MOE),
    "qwen3": Family(ARCH.QWEN3),
    "qwen3_moe": Family(ARCH.QWEN3MOE),
    "gemma": Family(ARCH.GEMMA, offset=1.0),
    "gemma2": Family(ARCH.GEMMA2, offset=1.0),
    "gemma3_text": Family(ARCH.GEMMA3, offset=1.0),
    "gemma4_text": Family(ARCH.GEMMA4, metadata=_gemma4, renames=_ROUTER),
    "gemma4_unified_text": Family(ARCH.GEMMA4, metadata=_gemma4),
    "gpt_oss": Family(ARCH.GPT_OSS),
    "phi": Family(ARCH.PHI2),
    "phi3": Family(ARCH.PHI3),
    "olmo2": Family(ARCH.OLMO2),
    "olmo3": Family(ARCH.OLMO2, metadata=_windows),
    "exaone4": Family(ARCH.EXAONE4, metadata=_windows),
    "granite": Family(ARCH.GRANITE, True),
    "cohere": Family(ARCH.COMMAND_R),
    "cohere2": Family(ARCH.COHERE2),
    "glm": Family(ARCH.CHATGLM),
    "glm4": Family(ARCH.GLM4),
    "smollm3": Family(ARCH.SMOLLM3, True),
    "seed_oss": Family(ARCH.SEED_OSS),
    "ernie4_5": Family(ARCH.ERNIE4_5),
    "hunyuan_v1_dense": Family(ARCH.HUNYUAN_DENSE, metadata=_hunyuan),
    "bloom": Family(
        ARCH.BLOOM, pieces=_by_kind(lambda config: config["num_attention_heads"]), renames=((r"^transformer\.", ""),)
    ),
    "falcon": Family(
        ARCH.FALCON, pieces=_by_kind(lambda config: config["num_key_value_heads"]),
    ),
    "gpt_neox": Family(
        ARCH.GPTNEOX, pieces=_by_kind(lambda config: config["num_attention_heads"]),
        metadata=lambda config: {"use_parallel_residual": config["use_parallel_residual"]},
    ),
    "mpt": Family(
        ARCH.MPT, metadata=lambda config: {
            "attention.max_alibi_bias": 8.0,
            **({"attention.clamp_kqv": clip} if (clip := config["attn_config"].get("clip_qkv")) else {}),
        },
    ),
    "phimoe": Family(ARCH.PHIMOE),
    "olmoe": Family(ARCH.OLMOE),
    "dots1": Family(ARCH.DOTS1, metadata=_grouped, renames=_SHARED_BIAS),
    "ernie4_5_moe": Family(ARCH.ERNIE4_5_MOE, metadata=_ernie_moe, renames=_SHARED_BIAS),
    "glm4_moe": Family(ARCH.GLM4_MOE, metadata=_grouped, renames=_SHARED_BIAS),
    "granitemoeshared": Family(ARCH.GRANITE_MOE, pieces=_gate_and_up, metadata=_granite_moe),
    "hunyuan_v1_moe": Family(ARCH.HUNYUAN_MOE, metadata=_hunyuan_moe),
    "llama4_text": Family(ARCH.LLAMA4, metadata=_llama4),
    "minimax_m2": Family(ARCH.MINIMAXM2, renames=_SHARED_BIAS),
    "lfm2": Family(ARCH.LFM2, pieces=_flat_convolutions, metadata=_lfm2),
    "lfm2_moe": Family(
        ARCH.LFM2MOE, pieces=_flat_convolutions, metadata=_lfm2, renames=((r"\.expert_bias", ".expert_bias.bias"),)
    ),
    "mamba": Family(ARCH.MAMBA, pieces=_mamba, metadata=_of_state),
    "falcon_mamba": Family(
        ARCH.MAMBA, pieces=_mamba, metadata=lambda config: _of_state(config) | {"ssm.dt_b_c_rms": True}
    ),
    "mamba2": Family(ARCH.MAMBA2, pieces=_mamba, metadata=_of_state, renames=_STEPS),
    "jamba": Family(
        ARCH.JAMBA, pieces=_mamba, metadata=lambda config: _of_state(config, "mamba_") | _kv_heads(config),
    ),
    "bamba": Family(ARCH.GRANITE_HYBRID, pieces=_granite_hybrid, metadata=_of_granite_hybrid, renames=_STEPS),
    "granitemoehybrid": Family(
        ARCH.GRANITE_HYBRID, pieces=_granite_hybrid, metadata=_of_granite_hybrid, renames=_STEPS
    ),
    "falcon_h1": Family(
        ARCH.FALCON_H1, pieces=_falcon_h1, metadata=lambda config: _of_state(config, "mamba_"), renames=_STEPS
    ),
    "nemotron_h": Family(ARCH.NEMOTRON_H_MOE, pieces=_mamba, metadata=_nemotron, renames=_BACKBONE),
    "qwen3_next": Family(ARCH.QWEN3NEXT, offset=1.0, pieces=_delta_net, metadata=_of_delta_net, renames=_STEPS),
    "qwen3_5_text": Family(ARCH.QWEN35, offset=1.0, pieces=_tiled, metadata=_of_delta_net, renames=_STEPS),
    "qwen3_5_moe_text": Family(ARCH.QWEN35MOE, offset=1.0, pieces=_tiled, metadata=_of_delta_net, renames=_STEPS),
    "deepseek_v2": Family(
        ARCH.DEEPSEEK2, pieces=_latent, metadata=lambda config: _of_latent(config) | _grouped(config)
    ),
    "deepseek_v3": Family(
        ARCH.DEEPSEEK2, pieces=_latent, metadata=lambda config: _of_latent(config) | _grouped(config),
        renames=_SHARED_BIAS,
    ),
    "deepseek_v32": Family(
        ARCH.GLM_DSA, pieces=_latent, renames=_SHARED_BIAS, metadata=_of_indexer, newer="deepseek32"
    ),
    "glm_moe_dsa": Family(ARCH.GLM_DSA, pieces=_latent, renames=_SHARED_BIAS, metadata=_of_indexer),
    "kimi_linear": Family(
        ARCH.KIMI_LINEAR, pieces=_kimi,
        metadata=lambda config: _of_latent(config) | _grouped(config) | _kv_heads(config, count=1)
        | {"kda.head_dim": config["linear_head_dim"], "ssm.conv_kernel": config["linear_conv_kernel_dim"]},
        renames=(*_BACKBONE, (r"block_sparse_moe\.(\w+_proj)", r"mlp.\1")),
    ),
}  # fmt: skip
