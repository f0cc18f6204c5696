"""Loads EAGLE heads in their published layouts; they run on the hidden states of a target that is already loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from engine_svc.loader.formats.base import CheckpointFormat, LoadFormat
from engine_svc.loader.formats.registry import create_format
from engine_svc.loader.model import BuiltModel, division_told, place_layers
from engine_svc.loader.source import TensorSource
from engine_svc.loader.weights import load_weights, pack_weights, randomize_weights
from engine_svc.models.draft import Draft
from engine_svc.models.heads import Eagle3Head, EagleHead, FeatureHead, HeadForm
from engine_svc.models.registry import config_for
from engine_svc.parallel.group import ParallelGroups
from quire.errors import StartupError
from quire.options.engine import EngineOptions

# Architecture names of heads whose layers are Llama's.
_LLAMA_HEADS = {
    "eagle": ("LlamaForCausalLM", "EagleLlamaForCausalLM", "LlamaForCausalLMEagle", "EagleModel"),
    "eagle3": ("LlamaForCausalLM", "LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "Eagle3Speculator"),
}
_EMBEDDING, _OUTPUT = "embed_tokens.weight", "lm_head.weight"

MakeHead = Callable[..., FeatureHead]


def load_eagle(
    method: str, folder: Path, raw: Mapping[str, Any], options: EngineOptions, target: BuiltModel,
    groups: ParallelGroups, device: torch.device,
) -> Draft:  # fmt: skip
    """Loads an EAGLE or EAGLE-3 head.

    Args:
        method: eagle or eagle3.
        raw: the head's config.json.
        options: those for the draft.

    Raises:
        StartupError: it cannot be read, or does not fit this target.
    """
    raw = {**raw, **(raw.get("transformer_layer_config") or {})}
    names = raw.get("architectures") or []
    if not any(name in _LLAMA_HEADS[method] for name in names):
        raise StartupError(
            f"{folder}: architectures in config.json is {names}; expected one of {', '.join(_LLAMA_HEADS[method])}. "
            f"Only heads with Llama layers are supported for {method}."
        )
    settings = raw.get("eagle_config") or {}
    config = replace(
        config_for({**raw, "architectures": ["LlamaForCausalLM"]}), module_names={"midlayer": "layers.0"},
        ignored_names=("t2d",), tie_word_embeddings=False,
    )  # fmt: skip
    _check_size(folder, "hidden_size", config.hidden_size, target.facts.hidden_size)
    _check_size(folder, "vocab_size", config.vocab_size, target.facts.vocab_size)
    source = create_format(folder, options.load)
    tensors = source.names() if isinstance(source, CheckpointFormat) else {}
    form = HeadForm(
        config,
        own_embedding=method == "eagle3" and _has(tensors, _EMBEDDING),
        own_output=_has(tensors, _OUTPUT),
        draft_vocab_size=raw.get("draft_vocab_size") if _has(tensors, "d2t") else None,
        fc_bias=_has(tensors, "fc.bias"),
        norm_before_residual=bool(raw.get("norm_before_residual")),
    )
    if method == "eagle":
        form = replace(form, config=replace(config, ignored_names=("t2d", "embed_tokens.")))
        return build_head(EagleHead, form, raw, source, options, target, groups, device)
    if config.num_layers != 1:
        raise StartupError(f"{folder}: num_hidden_layers in config.json is {config.num_layers}; expected 1 for eagle3.")
    asked = raw.get("eagle_aux_hidden_state_layer_ids") or settings.get("eagle_aux_hidden_state_layer_ids")
    layers = sorted(asked or _tapped(target.facts.num_layers))
    if len(set(layers)) != 3 or not all(0 <= layer < target.facts.num_layers for layer in layers):
        raise StartupError(
            f"{folder}: an eagle3 head reads the inputs of three layers, here {layers}; the model has "
            f"{target.facts.num_layers} layers. Use a head that was made for this model."
        )
    target.model.tap(layers)
    return build_head(Eagle3Head, form, raw, source, options, target, groups, device)


def _tapped(num_layers: int) -> tuple[int, int, int]:
    """The default layers of EAGLE-3: a low, a middle and a high one."""
    return 2, num_layers // 2, num_layers - 3


def _has(tensors: Mapping[str, Path], name: str) -> bool:
    return any(found.removeprefix("model.") == name for found in tensors)


def _check_size(folder: Path, field: str, found: int, expected: int) -> None:
    if found != expected:
        raise StartupError(
            f"{folder}: {field} in config.json is {found}; expected {expected}, as in the model. Use a head that was "
            "made for this model."
        )


def build_head(
    make: MakeHead, form: HeadForm, raw: Mapping[str, Any], source: TensorSource | LoadFormat, options: EngineOptions,
    target: BuiltModel, groups: ParallelGroups, device: torch.device,
) -> Draft:  # fmt: skip
    """Builds a head and loads its weights.

    Args:
        raw: the config.json that says how they are quantized.

    Raises:
        StartupError: they cannot be read, or are not those of this form.
    """
    longest = target.max_model_len
    with division_told(groups):
        context, attention = place_layers(raw, form.config, options, groups, device)
        head = make(form, context, attention, target.model, longest)
    if isinstance(source, TensorSource):
        load_weights(head, source, progress=False)
    elif not source.is_random:
        raise StartupError(f"--load-format {options.load.load_format} cannot read it; use another.")
    else:
        randomize_weights(head, options.generation.seed or 0)
        pack_weights(head)
    return Draft(head, attention, len(form.config.attention_windows), longest, context.present)
