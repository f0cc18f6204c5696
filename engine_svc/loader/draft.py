"""Loads the draft model of --speculative-config; the model that verifies its drafts is called the target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from engine_svc.config_formats.registry import read_model_config
from engine_svc.loader.folder import weights_folder
from engine_svc.loader.heads import load_eagle
from engine_svc.loader.model import BuiltModel, LoadedModel, load_model
from engine_svc.loader.multi_token import load_multi_token
from engine_svc.models.attention_heads import has_one_kind_of_cache
from engine_svc.models.draft import Draft, DraftDecoder
from engine_svc.models.registry import is_ours
from engine_svc.parallel.group import ParallelGroup, ParallelGroups
from engine_svc.parallel.layout import ParallelLayout
from quire.errors import StartupError
from quire.options.engine import EngineOptions
from quire.options.load import LoadOptions
from quire.options.lora import LoraOptions
from quire.options.model import ModelOptions
from quire.options.model_form import ModelFormOptions
from quire.options.speculative import MTP, SpeculativeConfig

_FLAG = "--speculative-config"
# Load formats of the target that also apply to the draft; otherwise the draft's format is detected from its files.
_SHARED_FORMATS = ("dummy", "pt", "npcache")


@dataclass(frozen=True)
class Target:
    """The model that verifies drafts, with all that a draft must match."""

    loaded: LoadedModel
    model: ModelOptions
    options: EngineOptions
    groups: ParallelGroups
    device: torch.device


def load_draft(config: SpeculativeConfig, target: Target) -> Draft:
    """Loads this rank's part of the draft model.

    Raises:
        StartupError: it cannot be read, or does not fit the target; says what was expected and what was found.
    """
    _check_target(config, target.loaded)
    if target.groups.layout.pipeline > 1 and config.chosen_method == "eagle3":
        raise StartupError(
            f"{_FLAG}: eagle3 uses the inputs of layers that are on other ranks with --pipeline-parallel-size. "
            "Choose another method."
        )
    try:
        return _load(config, target)
    except StartupError as error:
        what = f"the draft {config.model}" if config.model else config.chosen_method
        raise StartupError(f"{_FLAG}: {what}: {error}") from error


def _check_target(config: SpeculativeConfig, target: LoadedModel) -> None:
    """
    Raises:
        StartupError: no draft can be made for the target.
    """
    facts, reason = target.facts, ""
    if not isinstance(target, BuiltModel) and config.chosen_method != "draft_model":
        reason = (
            "runs with the Transformers library's code, which cannot share layers with a head. Choose draft_model, "
            "or a method that runs no model (ngram, suffix)"
        )
    elif facts.stream_count > 1 and config.chosen_method == "eagle3":
        reason = (
            "passes several streams of hidden states from layer to layer, of which an eagle3 head reads one. Choose "
            "ngram or suffix"
        )
    elif not facts.attention_windows:
        reason = "has no attention layers, whose KV blocks those of a draft share. Choose ngram or suffix"
    elif None not in facts.attention_windows.values():
        reason = (
            "has a sliding window in every layer, and frees KV blocks that a draft's layers still need. Set "
            "--disable-sliding-window, or choose a method that runs no model (ngram, suffix)"
        )
    if reason:
        raise StartupError(f"{_FLAG} needs another model to verify drafts: {facts.architecture} {reason}.")


def _load(config: SpeculativeConfig, target: Target) -> Draft:
    options, method = _draft_options(config, target), config.chosen_method
    if method == MTP:
        return _load_multi_token(config, target)
    folder = draft_folder(config, target.model, options.load)
    raw = read_model_config(folder, options.form)
    if method != "draft_model":
        _check_ranks(config, target)
        assert isinstance(target.loaded, BuiltModel)
        return load_eagle(method, folder, raw, options, target.loaded, _groups(config, target), target.device)
    return _load_decoder(config, target, folder, raw)


def draft_folder(config: SpeculativeConfig, model: ModelOptions, load: LoadOptions) -> Path:
    """The folder of a draft model that has one of its own.

    Args:
        model: the target's.
        load: see `draft_load`.

    Raises:
        StartupError: see `weights_folder`.
    """
    return weights_folder(replace(model, model=config.model or "", revision=config.revision), load)


def draft_load(load: LoadOptions) -> LoadOptions:
    """How the weights of a draft model are read if those of its target are read in this way."""
    shared = load.load_format if load.load_format in _SHARED_FORMATS else "auto"
    return replace(load, model_loader_extra_config={}, load_format=shared)


def _load_multi_token(config: SpeculativeConfig, target: Target) -> Draft:
    """Loads the layer with the options of the target, as it is in the target's checkpoint."""
    _check_ranks(config, target)
    if config.model:
        raise StartupError("its layer is in the model's own checkpoint: leave model out.")
    assert isinstance(target.loaded, BuiltModel)
    options = replace(_draft_options(config, target), form=target.options.form, load=target.options.load)
    folder = weights_folder(target.model, options.load)
    raw = read_model_config(folder, options.form)
    return load_multi_token(folder, raw, options, target.loaded, _groups(config, target), target.device)


def _check_ranks(config: SpeculativeConfig, target: Target) -> None:
    """
    Raises:
        StartupError: a head was asked to run on other ranks than the target, whose embedding it shares.
    """
    size, expected = config.draft_tensor_parallel_size, target.groups.layout.tensor
    if size not in (None, expected):
        raise StartupError(
            f"draft_tensor_parallel_size is {size}; expected {expected}: a head shares the model's embedding and "
            "output layer, and so runs on the model's ranks. Leave it out."
        )


def _load_decoder(config: SpeculativeConfig, target: Target, folder: Path, raw: Mapping[str, Any]) -> Draft:
    options = _draft_options(config, target)
    if not is_ours(raw):
        names = ", ".join(raw.get("architectures") or ()) or "none"
        raise StartupError(
            f"config.json in {folder} has the architecture {names}; expected one that Quire runs with its own code "
            "(docs/models.md). Use another draft, or the method that this one was made for."
        )
    loaded = load_model(folder, options, _groups(config, target), target.device)
    assert isinstance(loaded, BuiltModel)
    if loaded.facts.recurrent:
        raise StartupError(
            f"{loaded.facts.architecture} has recurrent layers, whose states a draft cannot roll back after a wrong "
            "guess; expected a model with only attention layers."
        )
    if not has_one_kind_of_cache(loaded.model.config):
        raise StartupError(
            f"{loaded.facts.architecture} has layers with different heads, or without keys and values of their own, "
            "which is not supported for drafts. Choose another draft, or a method that runs no model (ngram, suffix)."
        )
    model = DraftDecoder(loaded.model, target.loaded.facts.vocab_size)
    return Draft(model, loaded.attention, loaded.facts.num_layers, loaded.max_model_len, loaded.present)


def _draft_options(config: SpeculativeConfig, target: Target) -> EngineOptions:
    """The target's options as far as they apply to the draft.

    The draft uses the target's dtype, attention backend and cache block size.
    """
    options, loaded = target.options, target.loaded
    shape = loaded.attention.shape
    return replace(
        options,
        form=ModelFormOptions(dtype=str(loaded.dtype).removeprefix("torch."), quantization=config.quantization),
        load=draft_load(options.load),
        cache=replace(
            options.cache, block_size=shape.block_tokens, calculate_kv_scales=False, cpu_offload_gb=0.0,
            offload_group_size=0,
            kv_cache_dtype_skip_layers=(),
            kv_cache_dtype="auto" if shape.cache_dtype is None else options.cache.kv_cache_dtype,
        ),
        kernels=replace(options.kernels, attention_backend=loaded.attention.name),
        lora=LoraOptions(),
        parallel=replace(
            options.parallel, tensor_parallel_size=_groups(config, target).layout.tensor, pipeline_parallel_size=1
        ),
    )  # fmt: skip


def _groups(config: SpeculativeConfig, target: Target) -> ParallelGroups:
    """The groups for the draft, on the ranks with the model's last layers: a draft is not divided into stages.

    Raises:
        StartupError: the draft cannot be divided among the given number of ranks.
    """
    size, layout = config.draft_tensor_parallel_size or target.groups.layout.tensor, target.groups.layout
    if size == layout.tensor:
        alone = replace(layout, pipeline=1)
        rank = alone.rank(replace(layout.coordinates(target.groups.rank), pipeline=0))
        return replace(target.groups, layout=alone, rank=rank, pipeline=ParallelGroup())
    if size != 1:
        raise StartupError(
            f"draft_tensor_parallel_size is {size}; expected 1, or the --tensor-parallel-size "
            f"{target.groups.layout.tensor} of the model."
        )
    return ParallelGroups(ParallelLayout(), target.groups.rank)
