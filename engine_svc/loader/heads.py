"""Loads draft heads in their published layouts; they run on the hidden states of a target that is already loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from engine_svc.layers.parameter import TensorSlice
from engine_svc.loader.formats.base import CheckpointFormat, LoadFormat
from engine_svc.loader.formats.registry import create_format
from engine_svc.loader.model import BuiltModel, division_told, place_layers
from engine_svc.loader.source import TensorSource
from engine_svc.loader.weights import load_weights, pack_weights, randomize_weights
from engine_svc.models import step3
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
from engine_svc.models.stream_head import StreamHead, head_form
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
    family = _MULTI_TOKEN.get(config.architecture)
    if family is None:
        raise StartupError(
            f"Multi-token prediction is not supported for {config.architecture}, only for {', '.join(_MULTI_TOKEN)}. "
            "Use draft_model, eagle3, ngram or suffix."
        )
    count = raw.get(family.field, family.default_count)
    if not isinstance(count, int) or count < 1:
        raise StartupError(
            f"{folder}: {family.field} in config.json is {count!r}; expected 1 or more: the checkpoint has no layers "
            "for multi-token prediction. Use draft_model, eagle3, ngram or suffix."
        )
    source: TensorSource | LoadFormat = create_format(folder, options.load)
    if isinstance(source, CheckpointFormat):
        layer = family.prefix.format(config.num_layers)
        source = _Part(source, layer, without=(*family.without, *(f"layers.{index}." for index in range(1, count))))
        if not source.names():
            raise StartupError(
                f"{folder}: the checkpoint has no tensor {layer}*, a layer for multi-token prediction; it may have "
                "been lost when the checkpoint was converted. Use the original."
            )
    if family.reads_sums:
        target.model.tap([config.num_layers])
    return _build(family.make, family.form(config, raw), raw, source, options, target, groups, device)


@dataclass(frozen=True)
class _MultiToken:
    """How a family's checkpoints have layers for multi-token prediction, of which the first is used.

    Attributes:
        form: the head's form, from the target's configuration and its config.json.
        prefix: of the names of the layer's tensors, with the number of the target's layers in place of {}.
        without: tensors of it that are not loaded, by what their names begin with after the prefix.
        field: the number of such layers in config.json, and `default_count`, if it is left out.
        reads_sums: the layer reads what the target's last norm reads, not what it returns.
    """

    make: MakeHead
    form: Callable[[ModelConfig, Mapping[str, Any]], HeadForm]
    prefix: str = "layers.{}."
    without: tuple[str, ...] = ("shared_head.head.", "embed_tokens.")
    field: str = "num_nextn_predict_layers"
    default_count: int | None = None
    reads_sums: bool = False


# It attends to all tokens, also where the model chooses some: what it guesses is verified.
_BEHIND = _MultiToken(MultiTokenHead, lambda config, _: HeadForm(one_layer_more(without_indexer(config))))
_APART = _MultiToken(
    QwenMultiTokenHead, lambda config, _: HeadForm(attending_layer(config)), "mtp.", (), "mtp_num_hidden_layers", 1
)
_OF_STEP = _MultiToken(
    MultiTokenHead, lambda _, raw: HeadForm(step3.multi_token_config(raw), own_output=True), reads_sums=True
)
_OF_STREAMS = _MultiToken(StreamHead, head_form, "mtp.", (), reads_sums=True)
_MULTI_TOKEN = {
    "DeepseekV3ForCausalLM": _BEHIND, "DeepseekV32ForCausalLM": _BEHIND, "DeepseekV4ForCausalLM": _OF_STREAMS,
    "Glm4MoeForCausalLM": _BEHIND,
    "GlmMoeDsaForCausalLM": _BEHIND, "Qwen3NextForCausalLM": _APART, "Qwen3_5ForCausalLM": _APART,
    "Qwen3_5MoeForCausalLM": _APART, "Step3p5ForCausalLM": _OF_STEP,
}  # fmt: skip


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
