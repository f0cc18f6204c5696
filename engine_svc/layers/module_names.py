"""The names that checkpoints have for our modules."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

from engine_svc.layers.renames import names_before

# Module in checkpoints → (our module, part of its parameters).
PARTS = {
    "q_proj": ("qkv_proj", "q"), "k_proj": ("qkv_proj", "k"), "v_proj": ("qkv_proj", "v"),
    "gate_proj": ("gate_up_proj", "gate"), "up_proj": ("gate_up_proj", "up"),
    "q_conv1d": ("conv1d", "q"), "k_conv1d": ("conv1d", "k"), "v_conv1d": ("conv1d", "v"),
    "w1": ("gate_up_proj", "gate"), "w3": ("gate_up_proj", "up"), "w2": ("down_proj", ""),
    "alpha_p": ("act_fn", "alpha_p"), "alpha_n": ("act_fn", "alpha_n"), "beta": ("act_fn", "beta"),
    "eps": ("act_fn", "eps"),
}  # fmt: skip
# Mixtral's names (w1, w2, w3) are those of Llama's original code.
EXPERT_PARTS = {
    "gate_proj": ("gate_up", "gate"), "up_proj": ("gate_up", "up"), "down_proj": ("down", "down"),
    "w1": ("gate_up", "gate"), "w3": ("gate_up", "up"), "w2": ("down", "down"),
}  # fmt: skip
# Other names that some checkpoints have for modules: (ours, other). Applied in order, so a result may be renamed again.
OTHERWISE = (
    (".mlp.", ".block_sparse_moe."), (".mlp.", ".feed_forward."),
    (".mlp.shared_expert.gate_up_proj.", ".shared_mlp.input_linear."),  # Granite
    (".mlp.shared_expert.down_proj.", ".shared_mlp.output_linear."),
    (".mlp.experts.gate_up_proj.", ".mlp.input_linear."), (".mlp.experts.down_proj.", ".mlp.output_linear."),
    (".shared_expert.", ".shared_experts."), (".shared_expert.", ".shared_mlp."),
    (".gate.", ".router.layer."), (".gate.", ".router."), (".gate.", ".gate.wg."), (".gate.", ".moe_statics."),
    (".mlp.gate.e_score_correction_bias", ".mlp.e_score_correction_bias"),  # MiniMax
    (".mlp.gate.e_score_correction_bias", ".mlp.expert_bias"),  # LFM2
    (".self_attn.o_proj.", ".self_attn.out_proj."), (".mixer.", ".conv."),  # LFM2 too
    (".self_attn.g_proj.", ".self_attn.gate_proj."),  # LFM3
    (".mixer.", ".mamba."), (".mixer.", ".linear_attn."), (".self_attn.", ".attn.attention."),  # GPT-Neo
    (".self_attn.o_proj.", ".self_attn.c_proj."), (".mlp.fc_out.", ".mlp.c_proj."),  # GPT-2
    (".mlp.fc_in.", ".fc1."), (".mlp.fc_out.", ".fc2."),  # OPT
)  # fmt: skip


def names_in_checkpoints(
    path: str, part: str, module_names: Mapping[str, str], renames: Sequence[tuple[str, str]] = (),
    *, are_bare: bool = False, prefix: str = "",
) -> tuple[str, ...]:  # fmt: skip
    """All names that a checkpoint may have for a matrix.

    Args:
        path: of our module, such as layers.0.self_attn.qkv_proj; for experts, that of all of them.
        part: of the module. For experts, the names are those of the first expert.
        module_names, renames: see ModelConfig.
        are_bare: whether there may be no "model." in front.
        prefix: what there may be in front of everything.
    """
    parent, _, module = path.rpartition(".")
    if module == "experts":
        found = [f"{path}.0.{name}" for name, (_, each) in EXPERT_PARTS.items() if each == part]
    else:
        alone = [f"{parent}.{name}" for name, each in PARTS.items() if each == (module, part)]
        found = [*alone, path] if part else [path, *alone]  # the most common name first
    for ours, other in OTHERWISE:
        found += [f"{name}.".replace(ours, other)[:-1] for name in found if ours in f"{name}."]
    alone = [name if name == "lm_head" else f"model.{name}" for name in found]
    # Layers for multi-token prediction are beside the model.
    alone += [name for name in found if are_bare or name.startswith("mtp.")]
    named = names_before((other for name in alone for other in _renamed(name, module_names)), renames)
    found = [*named, *(other for name in named for other in _among_others(name))]
    return (*found, *(prefix + name for name in found if prefix))


def _renamed(module: str, module_names: Mapping[str, str]) -> Iterator[str]:
    """All combinations of each component of the name unchanged or as checkpoints of the model family have it."""
    parts = [[part, *(other for other, ours in module_names.items() if ours == part)] for part in module.split(".")]
    parts[0] += [f"model.{other}" for other in parts[0][1:] if parts[0][0] == "model"]  # or nested in "model"
    yield from map(".".join, itertools.product(*parts))


def _among_others(module: str) -> Iterator[str]:
    """The names in models that read media: since Transformers 4.52 (in Idefics 3, text_model), then before; and in
    models that also speak."""
    if module.startswith("model."):
        yield module.replace("model.", "model.language_model.", 1)
        yield module.replace("model.", "model.text_model.", 1)
    yield f"language_model.{module}"
    yield f"thinker.{module}"
