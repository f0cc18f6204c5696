"""Builds and loads a model: our own implementation of its family, or the Transformers library's."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch

from engine_svc.adapters.targets import TargetModules
from engine_svc.attention.base import AttentionBackend
from engine_svc.attention.chosen import SparseAttention
from engine_svc.attention.context import SharedContext
from engine_svc.attention.registry import create_backend
from engine_svc.config_formats.registry import read_model_config
from engine_svc.layers.context import LayerContext, PresentRows
from engine_svc.layers.embedding import EmbeddedRows
from engine_svc.layers.module_names import names_in_checkpoints
from engine_svc.loader.attention_shape import attention_shape, backend_for_layers, plain_shape, with_skipped_layers
from engine_svc.loader.chosen import check_stage, chosen_attention
from engine_svc.loader.compressed import compressed_backend
from engine_svc.loader.formats.base import CheckpointFormat
from engine_svc.loader.formats.registry import create_format
from engine_svc.loader.formats.whole import all_tensors
from engine_svc.loader.host_weights import host_weights_of
from engine_svc.loader.media import load_encoder_of, with_delay_told, with_head_told
from engine_svc.loader.names import parameter_of_module
from engine_svc.loader.own_dtype import TORCH_DTYPES, compute_dtype, read_config_to_load
from engine_svc.lora.layers import AdapterLayers
from engine_svc.lora.settings import AdapterSettings
from engine_svc.models.attention import AnyLayerCache
from engine_svc.models.attention_heads import LayerKind
from engine_svc.models.config import ModelConfig, ModelFacts, without_indexer, without_windows
from engine_svc.models.decoder import Decoder
from engine_svc.models.registry import config_for, image_obstacle, is_ours, takes_media, text_part
from engine_svc.native.library import choose_kernels
from engine_svc.ops.base import Ops
from engine_svc.ops.registry import create_ops
from engine_svc.parallel.group import ParallelGroups
from engine_svc.parallel.placement import ExpertSharing
from engine_svc.parallel.stages import Stage, stages_of
from engine_svc.parallel.vocabulary import VocabularyPart
from engine_svc.quantization.base import ModelForm, QuantizationMethod
from engine_svc.quantization.registry import check_dequantized, create_method, settings_of
from engine_svc.recurrence.base import StateForm, StateShape
from engine_svc.recurrence.registry import create_recurrence
from quire.errors import StartupError
from quire.media import MediaKind
from quire.options.cache import STATE_DTYPES, CacheOptions
from quire.options.engine import EngineOptions
from quire.options.experts import ExpertOptions
from quire.options.kernels import CPU_LEVELS
from quire.options.lora import LoraOptions
from quire.options.model_form import ModelFormOptions
from quire.options.multimodal import most
from quire.options.speculative import HEAD_METHODS, LOOKUP_METHODS
from quire.registry import registry
from quire.retrievers import PREFIX, RETRIEVERS

if TYPE_CHECKING:
    from engine_svc.media.base import MediaEncoder
    from engine_svc.models.transformers_model import Division

logger = logging.getLogger(__name__)

_STATE_DTYPES = registry("--mamba-cache-dtype", STATE_DTYPES, {
    "auto": None, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16,
})  # fmt: skip


class Model(Protocol):
    """The interface of a model that the runner calls.

    Attributes:
        stage: which of the layers this rank has.
    """

    stage: Stage

    @property
    def vocabulary(self) -> VocabularyPart | None:
        """See Decoder.vocabulary."""

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        caches: Sequence[AnyLayerCache],
        embedded: EmbeddedRows | None = None,
        received: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See Decoder.forward."""
        ...

    def logits(self, hidden: torch.Tensor, rows: torch.Tensor | None = None) -> torch.Tensor:
        """See Decoder.logits."""
        ...

    def own_logits(self, hidden: torch.Tensor, rows: torch.Tensor | None = None) -> torch.Tensor:
        """See Decoder.own_logits."""


@dataclass(frozen=True)
class LoadedModel:
    """A model with its attention backend, dtypes and limits."""

    model: Model
    facts: ModelFacts
    attention: AttentionBackend
    dtype: torch.dtype
    max_model_len: int
    batch_invariant: bool = False  # see Ops and AttentionBackend
    states: StateForm = StateForm({}, torch.float32, torch.float32)
    adapters: AdapterLayers | None = None  # None if no adapters are served
    present: PresentRows = field(default_factory=PresentRows)  # read by its layers, set by the runner
    product_rows: Sequence[int] = ()  # see Ops
    images: MediaEncoder | None = None  # None if it reads text only
    chosen: SparseAttention | None = None  # None if its layers attend to all positions


@dataclass(frozen=True)
class BuiltModel(LoadedModel):
    """A model of one of our own families."""

    model: Decoder


@torch.inference_mode()
def load_model(folder: Path, options: EngineOptions, groups: ParallelGroups, device: torch.device) -> LoadedModel:
    """Loads one rank's part of the model in `folder`.

    Raises:
        StartupError: the model cannot be read, or is not supported with these options.
    """
    for_8_bits = {
        "--calculate-kv-scales applies": options.cache.calculate_kv_scales,
        "--kv-cache-dtype-skip-layers applies": options.cache.kv_cache_dtype_skip_layers,
    }
    if options.cache.kv_cache_dtype in ("auto", "bfloat16") and (
        wrong := [told for told in for_8_bits if for_8_bits[told]]
    ):
        raise StartupError(f"{wrong[0]} only to an 8-bit KV cache: it needs --kv-cache-dtype fp8.")
    config = read_config_to_load(folder, options.form)
    if options.cache.kv_cache_dtype == "bfloat16" and not _asks_for_8_bits(config):
        raise StartupError(
            "--kv-cache-dtype bfloat16 is for models that ask for an 8-bit KV cache, which this one does not; leave "
            "it at auto, which is the model's own type."
        )
    config = with_delay_told(folder, with_head_told(folder, config, options))
    if options.form.model_impl == "transformers" or (options.form.model_impl == "auto" and not is_ours(config)):
        loaded = _load_from_transformers(folder, config, options, groups, device)
    else:
        loaded = _load_ours(folder, config, options, groups, device)
    if not takes_media(config):
        if obstacle := image_obstacle(config):
            logger.warning("images are refused: %s", obstacle)
        return loaded
    facts = replace(loaded.facts, architecture=config["architectures"][0])  # not that of its text model
    return replace(loaded, facts=facts, images=load_encoder_of(folder, config, options, loaded.dtype, device))


def _load_ours(
    folder: Path, config: dict[str, Any], options: EngineOptions, groups: ParallelGroups, device: torch.device
) -> LoadedModel:
    loaded = _build_ours(config, options, groups, device)
    host_weights = loaded.model.host_weights = host_weights_of(loaded.model, options, device)
    create_format(folder, options.load).load(loaded.model, groups, options.generation.seed or 0)
    if host_weights is not None:
        host_weights.start(device)
    return loaded


def build_model(folder: Path, options: EngineOptions, groups: ParallelGroups, device: torch.device) -> BuiltModel:
    """Builds one rank's part of a model of our own families, without its weights.

    Raises:
        StartupError: the model is not supported with these options.
    """
    return _build_ours(read_config_to_load(folder, options.form), options, groups, device)


def has_experts(folder: Path, options: EngineOptions) -> bool:
    """Whether the model has mixtures of experts and runs by Quire's own code.

    Raises:
        StartupError: its configuration cannot be read.
    """
    config = read_model_config(folder, options.form)
    if options.form.model_impl == "transformers" or not is_ours(config):
        return False
    return any(config_for(text_part(config)).moe)


def _asks_for_8_bits(config: Mapping[str, Any]) -> bool:
    """Whether the model wants an 8-bit KV cache: the checkpoint says so, or it has sparse attention (index_topk)."""
    given = {**(config.get("text_config") or {}), **config}  # of multimodal models, either may have the settings
    settings = given.get("quantization_config") or {}
    asked = settings.get("kv_cache_scheme") or settings.get("kv_cache_quant_algo")
    return bool(given.get("index_topk") or asked)


def check_invariance(ops: Ops, attention: AttentionBackend, is_recurrent: bool = False) -> None:
    """
    Raises:
        StartupError: a sequence's result depends on the other sequences of a batch.
    """
    if not ops.batch_invariant:
        raise StartupError(
            "--batch-invariant needs Quire's own kernels. Here, torch's operators would run, whose order of "
            "summation depends on the number of rows. Leave --cpu-kernels at auto, on a processor with one of its "
            "levels and with a C++ compiler or the wheel that contains the kernels; or leave --batch-invariant out."
        )
    if not attention.batch_invariant:
        raise StartupError(
            "--batch-invariant needs an attention backend that rounds prompts and single tokens alike, which "
            f"{attention.name} does not. Leave --attention-backend at auto, or leave --batch-invariant out."
        )
    if is_recurrent and not create_recurrence(ops).batch_invariant:
        raise StartupError(
            "--batch-invariant needs Quire's own kernels, but here there are none for recurrent layers: torch's "
            "operators run them. Leave --batch-invariant out."
        )


def _quantization(config: Mapping[str, Any], options: EngineOptions, form: ModelForm) -> QuantizationMethod:
    """The checkpoint's quantization method, or the one that quantizes its weights while they are loaded.

    Raises:
        StartupError: the method or its settings are not supported.
    """
    name, settings = options.form.quantization, settings_of(config)
    if name is not None and (wanted := settings_of(options.form.hf_overrides)):
        settings, form = None, replace(form, wanted=wanted)
    is_asked = options.load.load_format == "bitsandbytes"
    if is_asked and "bitsandbytes" not in (name, None if settings is None else settings["quant_method"]):
        raise StartupError("--load-format bitsandbytes needs --quantization bitsandbytes: set both, or neither.")
    return create_method(name, settings, form)


def _build_ours(
    raw_config: dict[str, Any], options: EngineOptions, groups: ParallelGroups, device: torch.device
) -> BuiltModel:
    raw = text_part(raw_config)
    config = config_for(raw)
    longest = longest_sequence(config, options.form)
    config = without_windows(config) if options.form.disable_sliding_window else config
    if config.indexer and longest <= config.indexer.most:
        config = without_indexer(config)
    config = with_skipped_layers(config, options.cache)
    if config.encoder_tokens:
        _check_crossing(config, options)
    stage = None
    if groups.layout.pipeline > 1:
        if config.borrowed or config.token_inputs or config.blending:
            raise StartupError(
                f"--pipeline-parallel-size {groups.layout.pipeline}: layers of {config.architecture} need more from "
                "earlier layers than hidden states. Use --tensor-parallel-size instead."
            )
        stage = stages_of(config.num_layers, options.parallel)[groups.layout.coordinates(groups.rank).pipeline]
        speculation = options.speculative.chosen()
        shares_embedding = speculation is not None and speculation.chosen_method in HEAD_METHODS
        stage = replace(stage, looks_up=stage.is_first or (stage.is_last and shares_embedding))
        check_stage(config, stage)
    with division_told(groups):
        context, attention = place_layers(raw, config, options, groups, device)
        adapters = adapter_layers(options.lora, config, context)
        model = Decoder(config, replace(context, adapters=adapters), attention, longest, stage)
    ops, dtype = context.ops, context.dtype
    invariant = (
        ops.batch_invariant
        and attention.batch_invariant
        and (not config.recurrent or create_recurrence(ops).batch_invariant)
        and not (options.parallel.experts.enable_eplb and any(config.moe))  # sums depend on the experts' placement
    )
    states = _state_form(model.state_shapes(), options.cache, dtype)
    return BuiltModel(
        model, config, attention, dtype, longest, invariant, states, adapters, context.present, ops.product_rows,
        chosen=context.chosen,
    )  # fmt: skip


def _check_crossing(config: ModelConfig, options: EngineOptions) -> None:
    """
    Raises:
        StartupError: an encoder-decoder model does not support the options.
    """
    speculation = options.speculative.chosen()
    refused = {
        "--enable-lora": options.lora.enable_lora, "--calculate-kv-scales": options.cache.calculate_kv_scales,
        "--decode-context-parallel-size": options.parallel.decode_context_parallel_size > 1,
        "--speculative-config with a draft model":
            speculation is not None and speculation.chosen_method not in LOOKUP_METHODS,
        "--limit-mm-per-prompt audio=0": not most(options.images.limit_mm_per_prompt, MediaKind.AUDIO),
    }  # fmt: skip
    if wrong := [name for name, given in refused.items() if given]:
        raise StartupError(f"{config.architecture} does not support {wrong[0]}. Leave it out.")


def place_layers(
    raw: Mapping[str, Any], config: ModelConfig, options: EngineOptions, groups: ParallelGroups, device: torch.device
) -> tuple[LayerContext, AttentionBackend]:
    """The context that a model's layers are constructed with, and its attention backend.

    Raises:
        StartupError: the layers are not supported with these options.
        ValueError: the layers cannot be divided among the ranks.
    """
    dtype = compute_dtype(config.dtype, options.form.dtype)
    kernels = choose_kernels(options.kernels.cpu_kernels, device)
    invariant = options.kernels.batch_invariant is True
    if invariant and options.parallel.experts.enable_eplb and any(config.moe):
        raise StartupError(
            "--batch-invariant cannot be combined with --enable-eplb: sums depend on where the experts currently are."
        )
    ops = create_ops(kernels, dtype, device, invariant)
    method = _quantization(raw, options, ModelForm(ops, dtype))

    def backend(kind: LayerKind) -> AttentionBackend:
        if config.compression:
            return compressed_backend(config, config.compression, options, groups, dtype, device)
        shape = attention_shape(config, options, groups, dtype, device, kind)
        found = create_backend(options.kernels.attention_backend, shape, kernels)
        if groups.decode_context.world_size > 1:
            found.context = SharedContext(groups.decode_context)
        return found

    attention = backend_for_layers(config, backend)
    if invariant:
        check_invariance(ops, attention, bool(config.recurrent))
    chosen = chosen_attention(config.indexer, attention, kernels, groups) if config.indexer else None
    sharing = sharing_of(options.parallel.experts, config, groups)
    return LayerContext(
        groups, dtype, device, ops, method, module_names=config.module_names, renames=config.renames, sharing=sharing,
        chosen=chosen, expands_heads=attention.expands_heads,
    ), attention  # fmt: skip


def sharing_of(options: ExpertOptions, config: ModelConfig, groups: ParallelGroups) -> ExpertSharing:
    """How the ranks share a model's experts.

    Raises:
        StartupError: the options contradict each other.
    """
    try:
        balancing = options.balancing()
    except ValueError as error:
        raise StartupError(str(error)) from error
    redundant = 0 if balancing is None else balancing.num_redundant_experts
    strategy, are_grouped = options.expert_placement_strategy, any(moe and moe.num_groups > 1 for moe in config.moe)
    if strategy == "round_robin" and (not are_grouped or redundant):
        strategy = "linear"
        if groups.rank == 0 and groups.layout.expert > 1:
            what = "grouped and not redundant" if are_grouped else "grouped"
            logger.warning("experts are placed linearly: round_robin is for models whose experts are %s", what)
    return ExpertSharing(strategy, redundant, options.all2all_backend)


@contextlib.contextmanager
def division_told(groups: ParallelGroups) -> Iterator[None]:
    """Turns a ValueError about dividing layers among ranks into a message.

    Raises:
        StartupError: what is built in the `with` block cannot be divided among the ranks.
    """
    try:
        yield
    except ValueError as error:
        sizes = {"--tensor-parallel-size": groups.layout.tensor, "--data-parallel-size": groups.layout.data}
        told = ", ".join(f"{flag} {size}" for flag, size in sizes.items() if size > 1)
        raise StartupError(f"{told}: {error}") from error


def adapter_layers(options: LoraOptions, config: ModelConfig, context: LayerContext) -> AdapterLayers | None:
    """What a model's layers register with, if adapters are served; None if not."""
    if not options.enable_lora:
        return None
    dtype = context.dtype if options.lora_dtype == "auto" else TORCH_DTYPES[options.lora_dtype]
    settings = AdapterSettings(
        options.max_loras, options.max_lora_rank, dtype, context.dtype, options.fully_sharded_loras,
        TargetModules(options.lora_target_modules), is_part=context.groups.layout.pipeline > 1,
    )  # fmt: skip
    find = partial(parameter_of_module, module_names=config.module_names, renames=config.renames)
    names = partial(
        names_in_checkpoints, module_names=config.module_names, renames=config.renames, are_bare=not config.has_head,
        prefix=PREFIX if config.architecture in RETRIEVERS else "",
    )  # fmt: skip
    return AdapterLayers(settings, context.ops, context.groups, context.device, find, names)


def _load_from_transformers(
    folder: Path, config: dict[str, Any], options: EngineOptions, groups: ParallelGroups, device: torch.device
) -> LoadedModel:
    source = create_format(folder, options.load)
    refused = {
        "--enable-expert-parallel": groups.layout.expert > 1,
        "--decode-context-parallel-size": groups.layout.decode_context > 1,
        "--quantization": options.form.quantization is not None,
        "--kv-cache-dtype-skip-layers": bool(options.cache.kv_cache_dtype_skip_layers),
        f"--load-format {options.load.load_format}": not isinstance(source, CheckpointFormat),
        f"--cpu-kernels {options.kernels.cpu_kernels}": options.kernels.cpu_kernels in CPU_LEVELS,
        "--batch-invariant": options.kernels.batch_invariant is True, "--enable-lora": options.lora.enable_lora,
        "--cpu-offload-gb": options.cache.cpu_offload_gb > 0 and device.type != "cpu",
        "--offload-group-size": options.cache.offload_group_size > 0 and device.type != "cpu",
        "--enable-dbo": options.parallel.dual_batch.enable_dbo,
    }  # fmt: skip
    if wrong := [name for name, given in refused.items() if given]:
        names = ", ".join(config.get("architectures") or ["the model"])
        raise StartupError(
            f"{names} runs with the Transformers library's code, which does not support {wrong[0]}. Leave it out."
        )
    check_dequantized(config)
    if groups.layout.tensor > 1 and settings_of(config):
        raise StartupError(
            "The checkpoint's weights are quantized, and the Transformers library's code cannot divide them among "
            "ranks. Leave --tensor-parallel-size out, or use the model's bfloat16 checkpoint."
        )
    # Imported here because most models do not need it, and it takes a second.
    from engine_svc.models.transformers_model import TransformersModel

    progress = options.load.use_tqdm_on_load and sys.stderr.isatty()
    dtype = compute_dtype(config.get("dtype") or config.get("torch_dtype") or "float32", options.form.dtype)
    division = _division(groups, options, device)
    model = TransformersModel(folder, config, dtype, device, progress, lambda: all_tensors(source), division)
    heads, facts = model.heads(), model.facts()
    attention = create_backend(
        options.kernels.attention_backend,
        plain_shape((heads.num_heads, heads.num_kv_heads, heads.head_dim), options, dtype, device),
        choose_kernels(options.kernels.cpu_kernels, device),
    )
    model.attend_by(attention)
    longest = longest_sequence(facts, options.form)
    return LoadedModel(model, facts, attention, dtype, longest)


def _division(groups: ParallelGroups, options: EngineOptions, device: torch.device) -> Division:
    """How a model that runs by the Transformers library's code is divided among the ranks."""
    from engine_svc.models.transformers_model import Division
    from engine_svc.models.transformers_stages import StageCut
    from engine_svc.models.transformers_tensor import TensorSharing

    def stage_of(num_layers: int) -> Stage:
        return stages_of(num_layers, options.parallel)[groups.layout.coordinates(groups.rank).pipeline]

    return Division(
        TensorSharing(groups.tensor, device) if groups.layout.tensor > 1 else None,
        StageCut(stage_of) if groups.layout.pipeline > 1 else None,
    )


def _state_form(shapes: dict[int, StateShape], cache: CacheOptions, dtype: torch.dtype) -> StateForm:
    convolution = _STATE_DTYPES[cache.mamba_cache_dtype]
    return StateForm(
        shapes,
        convolution_dtype=convolution or dtype,
        recurrent_dtype=_STATE_DTYPES[cache.mamba_ssm_cache_dtype] or convolution or torch.float32,
    )


def longest_sequence(facts: ModelFacts, form: ModelFormOptions) -> int:
    """The maximum sequence length.

    Raises:
        StartupError: the user asks for more than the model supports.
    """
    chosen, longest = form.max_model_len, facts.max_position_embeddings
    factor = facts.rope_parameters.get("factor")
    if facts.num_positions and (factor or (chosen or 0) > longest):
        asked = "--rope-scaling" if factor else f"--max-model-len {chosen}"
        raise StartupError(
            f"{asked}: {facts.architecture} has a table of {longest} positions, and none beyond. "
            + ("Leave it out." if factor else "Lower it.")
        )
    if factor and facts.rope_parameters.get("rope_type") in ("linear", "dynamic", "yarn"):
        original = facts.rope_parameters.get("original_max_position_embeddings") or longest
        longest = max(longest, int(original * factor))
    windows = [window for window in facts.sliding_windows if window] if form.disable_sliding_window else []
    if windows and chosen is not None and chosen > min(windows):
        raise StartupError(
            f"--max-model-len {chosen} is more than the model's sliding window of {min(windows)} tokens, which is "
            "the longest context with --disable-sliding-window. Lower it, or leave --disable-sliding-window out."
        )
    longest = min([longest, *windows])
    if chosen is not None and chosen > longest:
        raise StartupError(
            f"--max-model-len {chosen} is more than the model's {longest} positions. Lower it, extend them with "
            "--rope-scaling, or change max_position_embeddings with --hf-overrides."
        )
    return chosen or longest
