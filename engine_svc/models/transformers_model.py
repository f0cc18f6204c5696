"""Any other decoder: the Transformers library's own modelling code, with our paged attention plugged in.

Transformers asks a registry for the function that attends (its attention interface). Ours writes to the paged cache and
attends over it, so continuous batching, prefix caching and chunked prefill work as for our own models. The layers
between run as that library wrote them: slower, on one rank, without our kernels.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from transformers.modeling_outputs import MoeModelOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from engine_svc.attention.base import AttentionBackend, AttentionOptions
from engine_svc.layers.embedding import EmbeddedRows
from engine_svc.models.attention import AnyLayerCache, LayerCache
from engine_svc.models.config import ModelFacts
from engine_svc.models.registry import unsupported
from quire.errors import StartupError
from quire.supervised import Stage, report

logger = logging.getLogger(__name__)

_NAME = "quire-paged"
# What layers pass to an attention function: what ours obeys, and what says nothing new to it.
_OBEYED = {"scaling", "sliding_window", "softcap", "s_aux"}
_SILENT = {"cache_position", "dropout", "is_causal", "output_attentions", "position_ids", "use_cache"}
_LAYER_TYPES = {"full_attention", "sliding_attention"}


@dataclass(frozen=True)
class Heads:
    """What a layer's attention is called with."""

    num_heads: int
    num_kv_heads: int
    head_dim: int  # of queries and keys; values may be smaller


@dataclass
class _Output(MoeModelOutputWithPast):
    """What a decoder puts out, with the one field that others have and mixtures of experts do not."""

    cross_attentions: tuple[torch.Tensor, ...] | None = None


class _Given(torch.nn.Module):
    """Stands in the decoder's place, so that calling the model turns these hidden states into logits."""

    hidden: torch.Tensor

    def forward(self, *_: Any, **__: Any) -> _Output:
        return _Output(last_hidden_state=self.hidden)


class TransformersModel:
    """The same calls as Decoder's, once `attention` is set."""

    attention: AttentionBackend

    def __init__(
        self,
        folder: Path,
        raw: Mapping[str, Any],
        dtype: torch.dtype,
        device: torch.device,
        progress: bool,
        read_tensors: Callable[[], Mapping[str, torch.Tensor] | None] = lambda: None,
    ) -> None:
        """Loads the weights, and runs the model once to see its heads.

        Args:
            raw: config.json, with the user's changes.
            progress: shows a bar while loading.
            read_tensors: gives those of the checkpoint, where Transformers is not to read them itself.

        Raises:
            StartupError: Transformers has no such model, or it cannot use our attention.
        """
        config = _read(raw)
        report(Stage.LOADING)
        ALL_ATTENTION_FUNCTIONS.register(_NAME, self._probe)
        if not progress:
            transformers.utils.logging.disable_progress_bar()
        self._model = _load(folder, config, dtype, read_tensors()).eval().to(device)
        self._given = _Given()
        self._decoder = self._replace_decoder(self._given)
        self._heads: dict[int, Heads] = {}
        self._windows: dict[int, int | None] = {}  # by layer
        self._options: dict[int, AttentionOptions] = {}
        self._caches: Sequence[LayerCache] = ()
        with torch.inference_mode():
            self._decode(torch.zeros(2, dtype=torch.int64, device=device), torch.arange(2, device=device))

    def heads(self) -> Heads:
        """Those of every layer.

        Raises:
            StartupError: they differ.
        """
        found = set(self._heads.values())
        if len(found) != 1:
            raise StartupError(f"The model's layers have {len(found)} kinds of attention heads; supported is one.")
        return found.pop()

    def facts(self) -> ModelFacts:
        """What the rest of the engine must know of the model."""
        config = self._model.config
        return ModelFacts(
            architecture=type(self._model).__name__,
            dtype=str(self._model.dtype).removeprefix("torch."),
            vocab_size=config.vocab_size,
            hidden_size=self._decoder.get_input_embeddings().weight.shape[-1],
            num_layers=len(self._heads),
            max_position_embeddings=config.max_position_embeddings,
            rope_parameters=getattr(config, "rope_parameters", None) or {},
            sliding_windows=tuple(self._windows[layer] for layer in sorted(self._windows)),
        )

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        caches: Sequence[AnyLayerCache],
        embedded: EmbeddedRows | None = None,
    ) -> torch.Tensor:
        """See Decoder.forward."""
        ALL_ATTENTION_FUNCTIONS.register(_NAME, self._attend)
        self._caches = [cache for cache in caches if isinstance(cache, LayerCache)]
        return self._decode(token_ids, positions, embedded)

    def logits(self, hidden: torch.Tensor, rows: torch.Tensor | None = None) -> torch.Tensor:
        """See Decoder.logits."""
        hidden = hidden if rows is None else hidden[rows]
        self._given.hidden = hidden[None]
        ids = torch.zeros((1, len(hidden)), dtype=torch.int64, device=hidden.device)
        logits: torch.Tensor = self._model(input_ids=ids).logits[0].float()
        return logits

    def _decode(
        self, token_ids: torch.Tensor, positions: torch.Tensor, embedded: EmbeddedRows | None = None
    ) -> torch.Tensor:
        inputs = {"input_ids": token_ids[None]}
        if embedded is not None:
            inputs = {"inputs_embeds": embedded.put(self._decoder.get_input_embeddings()(token_ids))[None]}
        output = self._decoder(**inputs, position_ids=positions[None], use_cache=False)
        hidden: torch.Tensor = output.last_hidden_state[0]
        return hidden

    def _replace_decoder(self, stand_in: torch.nn.Module) -> Any:
        decoder = self._model.get_decoder()
        path = next(name for name, module in self._model.named_modules() if module is decoder)
        parent, _, name = path.rpartition(".")
        setattr(self._model.get_submodule(parent), name, stand_in)
        return decoder

    def _probe(
        self, module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **named: Any
    ) -> tuple[torch.Tensor, None]:
        """Attends to nothing; notes the layer's heads, and whether it wants anything that ours does not know."""
        unknown = sorted(name for name, given in named.items() if given is not None and name not in _OBEYED | _SILENT)
        if unknown or value.shape[-1] > query.shape[-1] or named.get("is_causal") is False:
            wants = ", ".join(unknown) or "attention that is not causal, or values longer than keys"
            raise StartupError(f"{type(module).__name__} cannot use paged attention: it wants {wants}.")
        self._heads[module.layer_idx] = Heads(query.shape[1], key.shape[1], query.shape[-1])
        self._windows[module.layer_idx] = named.get("sliding_window")
        return query[..., : value.shape[-1]].transpose(1, 2), None

    def _attend(
        self,
        module: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        scaling: float | None = None,
        sliding_window: int | None = None,
        softcap: float | None = None,
        s_aux: torch.Tensor | None = None,
        **_: Any,
    ) -> tuple[torch.Tensor, None]:
        """Transformers' attention function: [1, heads, tokens, dim] each → [1, tokens, heads, dim], no weights."""
        dim, value_dim = query.shape[-1], value.shape[-1]
        scale = dim**-0.5 if scaling is None else scaling
        options = self._options.setdefault(module.layer_idx, AttentionOptions(scale, sliding_window, softcap, s_aux))
        flat = [tensor[0].transpose(0, 1).contiguous() for tensor in (query, key, F.pad(value, (0, dim - value_dim)))]
        cache, prepared = self._caches[module.layer_idx]
        output = self.attention.forward(flat[0], flat[1], flat[2], cache, prepared, options)
        return output[None, ..., :value_dim], None


def _load(
    folder: Path, config: transformers.PretrainedConfig, dtype: torch.dtype, tensors: Mapping[str, torch.Tensor] | None
) -> Any:
    """The model with all of its weights.

    Raises:
        StartupError: the checkpoint lacks some, or they do not fit.
    """
    model_class = transformers.AutoModelForCausalLM._model_mapping[type(config)]
    try:
        model, told = model_class.from_pretrained(
            folder if tensors is None else None, config=config, dtype=dtype, attn_implementation=_NAME,
            use_safetensors=True, local_files_only=True, state_dict=tensors, output_loading_info=True,
            ignore_mismatched_sizes=True,
        )  # fmt: skip
    except (OSError, ValueError, RuntimeError) as error:
        raise StartupError(f"Transformers cannot load {folder}: {error}") from error
    for name, found, expected in told["mismatched_keys"]:
        raise StartupError(f"{folder}: {name}: shape {list(found)} in the checkpoint does not fit {list(expected)}")
    if missing := sorted(told["missing_keys"]):  # they would be random
        raise StartupError(f"{folder}: the checkpoint lacks {', '.join(missing[:5])} ({len(missing)} in all).")
    if unknown := sorted(told["unexpected_keys"]):
        logger.warning("%s: the model has no parameter for %s (%d in all)", folder, unknown[0], len(unknown))
    return model


def _read(raw: Mapping[str, Any]) -> transformers.PretrainedConfig:
    """The configuration; none of the checkpoint's own code is run.

    Raises:
        StartupError: Transformers does not know such a model, or it is not one that we can run.
    """
    try:
        config = transformers.CONFIG_MAPPING[raw.get("model_type", "")].from_dict(dict(raw))
    except (KeyError, ValueError, TypeError) as error:
        raise unsupported(raw) from error
    if getattr(config, "quantization_config", None):  # see quantization.registry
        config.quantization_config["dequantize"] = True
    model_class = transformers.AutoModelForCausalLM._model_mapping.get(type(config), None)
    types = set(getattr(config, "layer_types", None) or ())
    if (
        model_class is None
        or model_class.__name__ not in (config.architectures or ())
        or config.is_encoder_decoder
        or not model_class._supports_attention_backend
        or types - _LAYER_TYPES
    ):
        raise unsupported(raw)
    return config
