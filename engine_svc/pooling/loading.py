"""Loads a model for pooling: the layers of an encoder or decoder, and the head on top of them."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from engine_svc.attention.base import AttentionBackend
from engine_svc.layers.context import LayerContext
from engine_svc.loader.formats.base import CheckpointFormat, LoadFormat
from engine_svc.loader.formats.registry import create_format
from engine_svc.loader.media import load_encoder_of, with_head_told
from engine_svc.loader.model import adapter_layers, division_told, longest_sequence, place_layers
from engine_svc.loader.own_dtype import read_config_to_load
from engine_svc.loader.weights import load_weights, pack_weights, randomize_weights
from engine_svc.lora.layers import AdapterLayers
from engine_svc.models.attention_heads import has_one_kind_of_cache
from engine_svc.models.config import ModelConfig
from engine_svc.models.decoder import Decoder
from engine_svc.models.encoder import Encoder
from engine_svc.models.encoder_config import HEAD, NOBODYS, EncoderConfig, HeadConfig, HeadLayer
from engine_svc.models.registry import (
    ARCHITECTURES,
    ENCODERS,
    head_reader,
    read_config,
    takes_media,
    text_part,
    unsupported,
)
from engine_svc.parallel.group import ParallelGroups
from engine_svc.plan import PoolingSpec
from engine_svc.pooling.heads import Head, TokenRows, dense_layer, in_float32
from engine_svc.pooling.pooler import Pooler, Transform
from engine_svc.pooling_form.form import PoolingForm
from quire.errors import StartupError
from quire.options.engine import EngineOptions

if TYPE_CHECKING:
    from engine_svc.media.base import MediaEncoder

# Suffixes of architecture names of decoders.
_DECODERS = ("ForCausalLM", "LMHeadModel")
# Parts of the configuration of models that read media.
_MEDIA_PARTS = ("vision_config", "audio_config")
# Names of the layer that makes a vector of each token.
_PROJECTIONS = "(linear|custom_text_proj|embedding_proj_layer)"
_NO_HEAD = ((r"^score\.", NOBODYS),)


@dataclass(frozen=True)
class PooledModel:
    """A loaded model, and how its hidden states are pooled."""

    model: Encoder | Decoder
    attention: AttentionBackend
    pooler: Pooler
    form: PoolingForm
    spec: PoolingSpec
    max_model_len: int
    batch_invariant: bool
    images: MediaEncoder | None = None  # None if it reads text only
    adapters: AdapterLayers | None = None  # None if no adapters are served


@torch.inference_mode()
def load_pooled(
    folder: Path, form: PoolingForm, tokens: Sequence[int], options: EngineOptions, device: torch.device,
    groups: ParallelGroups,
) -> PooledModel:  # fmt: skip
    """Loads one rank's part of a model for pooling.

    Args:
        tokens: ids of `form.classifier_tokens`.

    Raises:
        StartupError: it cannot be read, or is not supported with these options.
    """
    whole = with_head_told(folder, _as_generator(read_config_to_load(folder, options.form), form), options)
    raw = text_part(whole)
    source = create_format(folder, options.load)
    config, head = _shape(raw, form, raw["architectures"] if takes_media(whole) else (), _has_bias(source))
    if isinstance(config, ModelConfig) and not has_one_kind_of_cache(config):
        raise StartupError(
            f"{config.architecture} has layers with different heads, or without keys and values of their own, which is "
            "not supported for pooling. Use --runner generate."
        )
    longest = _longest(config, form, options)
    with division_told(groups):
        context, attention = place_layers(raw, config, options, groups, device)
        kind = Encoder if isinstance(config, EncoderConfig) else Decoder
        adapters = adapter_layers(options.lora, config, context)
        adapted = replace(context, adapters=adapters)
        model: Encoder | Decoder = kind(config, adapted, attention, longest)  # type: ignore[arg-type]  # kind fits config
        narrow = in_float32(adapted, attention.kernels)
        stands = _head(config, form, head, tokens, narrow)
        if isinstance(stands, Head) or (stands is not None and not config.tie_word_embeddings):
            model.add_module(HEAD[:-1], stands)
    _fill(model, source, groups, options)
    if isinstance(stands, TokenRows):
        stands.finish(_embedded(model, tokens, device) if config.tie_word_embeddings else None)
    dense = _dense(form, stands, narrow)
    pooling = form.sequence_pooling or (head.pooling if head else "")
    if pooling not in ("CLS", "LAST", "MEAN"):
        pooling = "CLS" if isinstance(model, Encoder) else "LAST"
    classes = stands if form.has_classes else None
    spec = _spec(config, form, pooling)
    invariant = context.ops.batch_invariant and attention.batch_invariant
    pooler = Pooler(form, pooling, classes, dense, context.ops, adapters)
    images = load_encoder_of(folder, whole, options, context.dtype, device)
    return PooledModel(model, attention, pooler, form, spec, longest, invariant, images, adapters)


def _as_generator(raw: dict[str, Any], form: PoolingForm) -> dict[str, Any]:
    """The configuration of a model that reads media, with the name of the architecture that generates text.

    Other models' configurations are returned unchanged.
    """
    named = {**raw, "architectures": [f"{form.architecture.family}ForConditionalGeneration"]}
    return named if any(part in raw for part in _MEDIA_PARTS) and takes_media(named) else raw


def _shape(
    raw: Mapping[str, Any], form: PoolingForm, text_models: Sequence[str], has_bias: bool
) -> tuple[ModelConfig, HeadConfig | None]:
    """The configurations of the model, with its checkpoint's names for the head, and of the head.

    Args:
        text_models: architecture of the text model, if the model reads media.
        has_bias: whether the projection of tokens has one, if there is a projection.

    Raises:
        StartupError: the family is not supported for pooling.
    """
    architecture = form.architecture
    is_encoder = architecture.family in ENCODERS
    names = (*text_models, *(architecture.family + end for end in _DECODERS))
    decoder = next((name for name in names if name in ARCHITECTURES), "")
    module = ENCODERS.get(architecture.family) or ARCHITECTURES.get(decoder)
    if module is None:
        raise unsupported(raw, "Quire has no code of its own for it, which pooling requires")
    own = architecture.name if is_encoder else decoder
    config = read_config(module, {**raw, "architectures": [own]})
    if config.recurrent or config.latent or config.compression or config.indexer:
        raise unsupported(
            raw, "models with recurrent layers, or compressed or sparse attention, are not supported for pooling"
        )
    if config.encoder_tokens or config.frames_per_token:
        raise unsupported(raw, "models that write down what they hear are not supported for pooling")
    if not is_encoder:
        config = replace(_two_ways(config, raw), has_head=False)
    head = None
    if form.token_size is not None:
        layers = (HeadLayer(form.token_size, bias=has_bias),)
        head = HeadConfig(layers, ((rf"^{_PROJECTIONS}\.", f"{HEAD}0."),), "ALL")
    elif form.has_classes and not form.classifier_tokens:
        kind = architecture.kind if architecture.has_classes else "SequenceClassification"
        head = head_reader(architecture.family)(raw, kind, form.num_labels)
    renames = head.renames if head else () if is_encoder else _NO_HEAD
    if form.classifier_tokens and not config.tie_word_embeddings:
        renames = ((r"^(language_model\.)?lm_head\.", HEAD),)
    return replace(config, architecture=architecture.name, renames=(*renames, *config.renames)), head


def _has_bias(source: LoadFormat) -> bool:
    """Whether the checkpoint has a bias of the layer that makes a vector of each token."""
    names = source.names() if isinstance(source, CheckpointFormat) else ()
    return any(re.fullmatch(rf"{_PROJECTIONS}\.bias", name) for name in names)


def _head(
    config: ModelConfig, form: PoolingForm, head: HeadConfig | None, tokens: Sequence[int], context: LayerContext
) -> Head | TokenRows | None:
    """The head on top of the model, if there is one."""
    if form.classifier_tokens:
        return TokenRows(tokens, config.hidden_size, form.subtracts_first, context)
    return None if head is None else Head(config.hidden_size, head.layers, context)


def _embedded(model: Encoder | Decoder, tokens: Sequence[int], device: torch.device) -> torch.Tensor:
    """The embedding's rows of these tokens, [tokens, hidden_size], without its scale."""
    scale = model.config.embedding_scale * model.config.embedding_multiplier
    found: torch.Tensor = model.embed_tokens(torch.tensor(tokens, device=device)).float() / scale
    return found


def _two_ways(config: ModelConfig, raw: Mapping[str, Any]) -> ModelConfig:
    """Makes a decoder bidirectional if it was trained so. Gemma's windows then reach equally far to both sides."""
    if raw.get("use_bidirectional_attention"):
        halves = tuple(None if window is None else window // 2 + 1 for window in config.sliding_windows)
        return replace(config, bidirectional=True, sliding_windows=halves)
    return replace(config, bidirectional=True) if raw.get("is_causal") is False else config


def _longest(config: ModelConfig, form: PoolingForm, options: EngineOptions) -> int:
    """The maximum sequence length: by default, the limit in sentence-transformers' files if there is one."""
    longest = longest_sequence(config, options.form)
    if options.form.max_model_len is None and form.max_length is not None:
        return min(longest, form.max_length)
    return longest


def _fill(model: Encoder | Decoder, source: LoadFormat, groups: ParallelGroups, options: EngineOptions) -> None:
    """Loads the weights.

    Raises:
        StartupError: the weights cannot be read, or do not fit the model.
    """
    if source.is_random:
        randomize_weights(model, options.generation.seed or 0)
        pack_weights(model)
    elif isinstance(source, CheckpointFormat):
        load_weights(model, source, options.load.use_tqdm_on_load and sys.stderr.isatty())
    elif isinstance(model, Decoder):
        source.load(model, groups, options.generation.seed or 0)
    else:
        raise StartupError(
            f"--load-format {options.load.load_format}: encoders can only be read from safetensors or pt files."
        )


def _dense(form: PoolingForm, head: Transform | None, context: LayerContext) -> Transform | None:
    """The layers applied after pooling, or to each token; None if there are none."""
    layers: list[Transform] = [dense_layer(dense, context) for dense in form.dense]
    if form.token_size is not None and head is not None:
        layers.insert(0, head)
    if not layers:
        return None
    return lambda hidden: reduce(lambda values, layer: layer(values), layers, hidden)


def _spec(config: ModelConfig, form: PoolingForm, pooling: str) -> PoolingSpec:
    outputs = form.dense[-1].outputs if form.dense else form.token_size or config.hidden_size
    return PoolingSpec(
        embedding_size=0 if form.has_classes else outputs,
        token_embedding_size=0 if form.has_classes else outputs if form.is_late_interaction else config.hidden_size,
        type_vocab_size=config.type_vocab_size if isinstance(config, EncoderConfig) else 0,
        pooling_type=pooling if form.tasks[0] in ("embed", "classify") else form.by_token,
    )  # fmt: skip
