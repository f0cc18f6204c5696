"""Loads draft heads in their published layouts; they run on the hidden states of a target that is already loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from engine_svc.layers.parameter import TensorSlice
from engine_svc.loader.formats.base import CheckpointFormat, LoadFormat
from engine_svc.loader.formats.registry import create_format
from engine_svc.loader.model import BuiltModel, division_told, place_layers
from engine_svc.loader.source import TensorSource
from engine_svc.loader.weights import load_weights, pack_weights, randomize_weights
from engine_svc.models.config import ModelConfig, without_indexer
from engine_svc.models.draft import Draft
from engine_svc.models.heads import (
    Eagle3Head,
    EagleHead,
    FeatureHead,
    HeadForm,
    MultiTokenHead,
    QwenMultiTokenHead,
    attending_layer,
    one_layer_more,
)
from engine_svc.models.registry import config_for, text_part
from engine_svc.parallel.group import ParallelGroups
from quire.errors import StartupError
from quire.options.engine import EngineOptions

# Architecture names of heads whose layers are Llama's.
_LLAMA_HEADS = {
    "eagle": ("LlamaForCausalLM", "EagleLlamaForCausalLM", "LlamaForCausalLMEagle", "EagleModel"),
    "eagle3": ("LlamaForCausalLM", "LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "Eagle3Speculator"),
}
# Families whose checkpoints have num_nextn_predict_layers more layers, for multi-token prediction, after their own.
_MULTI_TOKEN = ("DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM", "Glm4MoeForCausalLM", "GlmMoeDsaForCausalLM")
# Families whose checkpoints have such layers apart from their own, as mtp.layers: the architectures of text models.
_MULTI_TOKEN_APART = ("Qwen3NextForCausalLM", "Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM")
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
        return _build(EagleHead, form, raw, source, options, target, groups, device)
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
    return _build(Eagle3Head, form, raw, source, options, target, groups, device)


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


def load_multi_token(
    folder: Path, raw: Mapping[str, Any], options: EngineOptions, target: BuiltModel, groups: ParallelGroups,
    device: torch.device,
) -> Draft:  # fmt: skip
    """Loads the first multi-token prediction layer of the target's own checkpoint.

    Args:
        folder: of the target.
        raw: the target's config.json.

    Raises:
        StartupError: there is no such layer.
    """
    raw, config = text_part(raw), target.model.config
    is_apart = config.architecture in _MULTI_TOKEN_APART
    if not is_apart and config.architecture not in _MULTI_TOKEN:
        raise StartupError(
            f"Multi-token prediction is not supported for {config.architecture}, only for "
            f"{', '.join((*_MULTI_TOKEN, *_MULTI_TOKEN_APART))}. Use draft_model, eagle3, ngram or suffix."
        )
    field = "mtp_num_hidden_layers" if is_apart else "num_nextn_predict_layers"
    count = raw.get(field, 1 if is_apart else None)
    if not isinstance(count, int) or count < 1:
        raise StartupError(
            f"{folder}: {field} in config.json is {count!r}; expected 1 or more: the checkpoint has no layers for "
            "multi-token prediction. Use draft_model, eagle3, ngram or suffix."
        )
    if is_apart:
        make: MakeHead = QwenMultiTokenHead
        form, layer = HeadForm(attending_layer(config)), "mtp."
        left_out = tuple(f"layers.{index}." for index in range(1, count))
    else:
        # It attends to all tokens, also where the model chooses some: what it guesses is verified.
        make, form = MultiTokenHead, HeadForm(one_layer_more(without_indexer(config)))
        layer, left_out = f"layers.{config.num_layers}.", ("shared_head.head.", "embed_tokens.")
    source: TensorSource | LoadFormat = create_format(folder, options.load)
    if isinstance(source, CheckpointFormat):
        source = _Part(source, layer, without=left_out)
        if not source.names():
            raise StartupError(
                f"{folder}: the checkpoint has no tensor {layer}*, a layer for multi-token prediction; it may have "
                "been lost when the checkpoint was converted. Use the original."
            )
    return _build(make, form, raw, source, options, target, groups, device)


class _Part(TensorSource):
    """One layer of a checkpoint, without some of its tensors."""

    def __init__(self, whole: CheckpointFormat, layer: str, without: tuple[str, ...]) -> None:
        self.folder = whole.folder
        self._whole, self._layer, self._without = whole, layer, without

    def _is_of_it(self, name: str) -> bool:
        _, found, rest = name.partition(self._layer)
        return bool(found) and not rest.startswith(self._without)

    def names(self) -> Mapping[str, Path]:
        """See TensorSource.names."""
        return {name: file for name, file in self._whole.names().items() if self._is_of_it(name)}

    def tensors(self) -> Iterator[tuple[str, TensorSlice]]:
        """See TensorSource.tensors."""
        return ((name, found) for name, found in self._whole.tensors() if self._is_of_it(name))


def _build(
    make: MakeHead, form: HeadForm, raw: Mapping[str, Any], source: TensorSource | LoadFormat, options: EngineOptions,
    target: BuiltModel, groups: ParallelGroups, device: torch.device,
) -> Draft:  # fmt: skip
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
    return Draft(head, attention, _cached_layers(make, form.config), longest, context.present)


def _cached_layers(make: MakeHead, config: ModelConfig) -> int:
    return config.num_layers if make is EagleHead else 1
