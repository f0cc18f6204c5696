"""Any other decoder: the Transformers library's own modeling code, with our paged attention plugged in.

Transformers looks up the attention function in a registry (its attention interface). Ours writes to the paged KV cache
and attends to it, so continuous batching, prefix caching and chunked prefill work as for our own models. All other
layers run that library's code: slower, without our kernels. Several ranks share a model by the plans that come with it
(transformers_tensor.py, transformers_stages.py).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.distributed import DistributedConfig
from transformers.modeling_outputs import BaseModelOutputWithPast

from engine_svc.attention.base import AttentionBackend
from engine_svc.layers.embedding import EmbeddedRows
from engine_svc.load_reports import without_reports
from engine_svc.models.attention import AnyLayerCache, LayerCache
from engine_svc.models.config import ModelFacts
from engine_svc.models.paged_interface import NAME, WATCHED, Heads, PagedInterface
from engine_svc.models.registry import unsupported
from engine_svc.models.transformers_stages import StageCut
from engine_svc.models.transformers_tensor import TensorSharing
from engine_svc.parallel.stages import Stage
from quire import supervised
from quire.errors import StartupError

logger = logging.getLogger(__name__)

# Supported layer types, if the configuration names them.
_LAYER_TYPES = {"full_attention", "sliding_attention"}
# Sub-configurations that belong to a text model.
_TEXT_PARTS = {"attn_config", "ffn_config", "text_config"}
_DRAFTERS = {"gemma4_assistant", "gemma4_unified_assistant"}
# Names of a language model's parameters within a multimodal model, and the names in the language model alone.
_NAMES_AMONG_OTHERS = {
    r"^(model\.language_model|language_model\.model)\.": "model.", r"^language_model\.lm_head\.": "lm_head.",
}  # fmt: skip


class _Output(BaseModelOutputWithPast):
    """Output of a decoder with hidden states only; any further attribute that some decoders have reads as None."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("_"):
            raise AttributeError(name)


class _Given(torch.nn.Module):
    """Takes the decoder's place, so that calling the model turns these hidden states into logits."""

    hidden: torch.Tensor

    def forward(self, *_: Any, **__: Any) -> _Output:
        return _Output(last_hidden_state=self.hidden)


@dataclass(frozen=True)
class Division:
    """How ranks share a model."""

    tensor: TensorSharing | None = None
    cut: StageCut | None = None

    def begin(self, model: Any) -> None:
        """Called before the model's weights are read."""
        if self.cut is not None:
            self.cut.begin(model)
        if self.tensor is not None:
            self.tensor.begin(model)

    def finish(self, model: Any) -> None:
        """Called once the weights have been read."""
        if self.tensor is not None:
            self.tensor.finish(model)


class TransformersModel:
    """A model of the Transformers library, with the interface of Decoder; `attend_by` must be called before `forward`.

    Attributes:
        stage: the layers on this rank.
    """

    def __init__(
        self,
        folder: Path,
        raw: Mapping[str, Any],
        dtype: torch.dtype,
        device: torch.device,
        progress: bool,
        read_tensors: Callable[[], Mapping[str, torch.Tensor] | None] = lambda: None,
        division: Division = Division(),
    ) -> None:
        """Loads the weights, and runs the model once to find out its heads.

        Args:
            raw: config.json, with the user's changes.
            progress: whether to show a progress bar while loading.
            read_tensors: returns the checkpoint's tensors; None means that Transformers reads them itself.
            division: how ranks share the model; not to be used for another model.

        Raises:
            StartupError: Transformers has no such model, it cannot use our attention, or ranks cannot share it.
        """
        config = _read(raw)
        self._cut, self._dtype = division.cut, dtype
        supervised.report(supervised.Stage.LOADING)
        self._interface = PagedInterface()
        self._interface.watch()
        if not progress:
            transformers.utils.logging.disable_progress_bar()
        self._model = _load(folder, config, dtype, read_tensors(), division).eval().to(device)
        division.finish(self._model)
        self._decoder = _decoder_of(self._model)
        self._given = _Given()
        self._put_in_place_of_decoder(self._given)
        self._first_position = _first_position(self._decoder)
        self._try(device)
        self.stage = self._cut.stage if self._cut else Stage(range(len(self._interface.windows)))

    def heads(self) -> Heads:
        """The heads of the KV cache; see PagedInterface.heads."""
        return self._interface.heads()

    def attend_by(self, attention: AttentionBackend) -> None:
        """Sets the attention backend, whose heads must be those of `heads`."""
        self._interface.attention = attention

    def facts(self) -> ModelFacts:
        """What the rest of the engine must know of the model."""
        config = self._model.config.get_text_config()
        return ModelFacts(
            architecture=type(self._model).__name__,
            dtype=str(self._dtype).removeprefix("torch."),
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size if self._cut else self._decoder.get_input_embeddings().weight.shape[-1],
            num_layers=self._cut.num_layers if self._cut else len(self._interface.windows),
            max_position_embeddings=config.max_position_embeddings - self._first_position,
            rope_parameters=getattr(config, "rope_parameters", None) or {},
            sliding_windows=tuple(self._interface.windows) if self._cut is None else self._windows(self._cut, config),
        )

    def _windows(self, cut: StageCut, config: transformers.PretrainedConfig) -> tuple[int | None, ...]:
        """The windows of the layers of all stages, which every stage must know.

        Raises:
            StartupError: what the configuration says of all layers differs from what this stage's layers have.
        """
        own, kinds = self._interface.windows, getattr(config, "layer_types", None)
        if kinds:
            window = getattr(config, "sliding_window", None)
            found = [window if kind == "sliding_attention" else None for kind in kinds]
        else:
            found = own[:1] * cut.num_layers
        if own != found[cut.stage.layers.start : cut.stage.layers.stop]:
            raise StartupError(
                f"{type(self._model).__name__}: the configuration does not say how often the layers of other stages "
                "attend, and with which windows. Leave --pipeline-parallel-size out."
            )
        return tuple(found)

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        caches: Sequence[AnyLayerCache],
        embedded: EmbeddedRows | None = None,
        received: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See Decoder.forward."""
        self._interface.begin([cache for cache in caches if isinstance(cache, LayerCache)])
        if self._cut is None:
            return self._decode(token_ids, positions, embedded)
        self._cut.received = received
        hidden = self._decode(token_ids, positions, embedded if received is None else None)
        return hidden if self._cut.left is None else self._cut.left[0]

    vocabulary = None  # logits are always those of the whole vocabulary

    def own_logits(self, hidden: torch.Tensor, rows: torch.Tensor | None = None) -> torch.Tensor:
        """See Decoder.own_logits."""
        return self.logits(hidden, rows)

    def logits(self, hidden: torch.Tensor, rows: torch.Tensor | None = None) -> torch.Tensor:
        """See Decoder.logits."""
        hidden = hidden if rows is None else hidden[rows]
        self._given.hidden = hidden[None]
        ids = torch.zeros((1, len(hidden)), dtype=torch.int64, device=hidden.device)
        logits: torch.Tensor = self._model(input_ids=ids).logits[0].float()
        return logits

    @torch.inference_mode()
    def _try(self, device: torch.device) -> None:
        """Tries the model with two tokens.

        Raises:
            StartupError: it does not run.
        """
        try:
            hidden = self._decode(torch.zeros(2, dtype=torch.int64, device=device), torch.arange(2, device=device))
            if self._cut is None or self._cut.stage.is_last:
                self._check(hidden)
        except StartupError:
            raise
        except Exception as error:
            advice = "" if self._cut is None else ". It may run without --pipeline-parallel-size"
            raise StartupError(f"Transformers' {type(self._model).__name__} cannot run: {error}{advice}") from error
        self._model.config._attn_implementation = NAME

    def _check(self, hidden: torch.Tensor) -> None:
        """Checks the result of the trial run.

        Raises:
            ValueError: it is not that of a model which is correctly divided among ranks.
        """
        size = self._model.config.get_text_config().vocab_size
        if (found := self.logits(hidden).shape[-1]) != size:
            raise ValueError(f"it has logits for {found} tokens, but its vocabulary has {size}")
        if self._cut is not None and hidden.isnan().any():
            raise ValueError("its layers need more from the first stage than hidden states")

    def _decode(
        self, token_ids: torch.Tensor, positions: torch.Tensor, embedded: EmbeddedRows | None = None
    ) -> torch.Tensor:
        inputs = {"input_ids": token_ids[None]}
        if embedded is not None:
            inputs = {"inputs_embeds": embedded.put(self._decoder.get_input_embeddings()(token_ids))[None]}
        output = self._decoder(**inputs, position_ids=positions[None] + self._first_position, use_cache=False)
        hidden: torch.Tensor = output.last_hidden_state[0]
        return hidden

    def _put_in_place_of_decoder(self, stand_in: torch.nn.Module) -> None:
        path = next(name for name, module in self._model.named_modules() if module is self._decoder)
        parent, _, name = path.rpartition(".")
        setattr(self._model.get_submodule(parent), name, stand_in)


def _load(
    folder: Path,
    config: transformers.PretrainedConfig,
    dtype: torch.dtype,
    tensors: Mapping[str, torch.Tensor] | None,
    division: Division,
) -> Any:
    """Loads the text model with all of its weights.

    Raises:
        StartupError: the checkpoint lacks weights, they do not fit, or ranks cannot share the model.
    """
    text = config.get_text_config()
    is_part = text is not config
    if is_part:
        logger.info("%s: the language model is loaded apart from the model's other parts", folder)
        text.tie_word_embeddings = config.tie_word_embeddings
    try:
        model_class = transformers.AutoModelForCausalLM._model_mapping[type(text)]
        with without_reports():
            model, told = _divided(model_class, division).from_pretrained(
                folder if tensors is None else None, config=text, dtype=dtype, attn_implementation=WATCHED,
                use_safetensors=True, local_files_only=True, state_dict=tensors, output_loading_info=True,
                ignore_mismatched_sizes=True, key_mapping=_NAMES_AMONG_OTHERS if is_part else None,
                distributed_config=None if division == Division() else DistributedConfig(tp_size=1),
            )  # fmt: skip
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        raise StartupError(f"Transformers cannot load {folder}: {error}") from error
    for name, found, expected in told["mismatched_keys"]:
        raise StartupError(f"{folder}: {name}: shape {list(found)} in the checkpoint does not fit {list(expected)}")
    if missing := sorted(told["missing_keys"]):  # they would have random values
        raise StartupError(f"{folder}: the checkpoint lacks {', '.join(missing[:5])} ({len(missing)} in all).")
    unknown = sorted(told["unexpected_keys"])
    if unknown and not is_part and division.cut is None:
        logger.warning("%s: the model has no parameter for %s (%d in all)", folder, unknown[0], len(unknown))
    return model


def _divided(model_class: Any, division: Division) -> Any:
    """A subclass of the model class that divides its models among ranks.

    Transformers divides a model after making it and before reading its weights, by replacing parameters with
    placeholders for a part. The subclass overrides the methods that Transformers calls for this.
    """
    if division == Division():
        return model_class

    def prepare(_: Any, config: DistributedConfig, device_map: Any = None) -> tuple[DistributedConfig, Any, None]:
        return config, device_map, None  # process groups exist already

    def divide(_: Any, model: Any, *__: Any) -> Any:
        division.begin(model)
        return model

    methods = {"prepare_distribute_model": classmethod(prepare), "maybe_distribute_model": classmethod(divide)}
    return type(model_class.__name__, (model_class,), methods | {"__module__": model_class.__module__})


def _read(raw: Mapping[str, Any]) -> transformers.PretrainedConfig:
    """The configuration as a Transformers object; none of the checkpoint's own code is run.

    Raises:
        StartupError: Transformers does not know this type of model, or we cannot run it.
    """
    try:
        config = transformers.CONFIG_MAPPING[raw.get("model_type", "")].from_dict(dict(raw))
    except KeyError as error:
        raise unsupported(raw, f"Transformers {transformers.__version__} has no such model type") from error
    except Exception as error:  # configuration classes check their fields and raise exceptions of many kinds
        raise StartupError(f"Transformers does not accept the model's configuration: {error}") from error
    if getattr(config, "quantization_config", None):  # see quantization.registry
        config.quantization_config["dequantize"] = True
    if reason := _obstacle(config):
        raise unsupported(raw, reason)
    return config


def _obstacle(config: transformers.PretrainedConfig) -> str | None:
    """Why a model cannot run with paged attention, as far as this can be told before loading its weights, or None."""
    if config.is_encoder_decoder or type(config).is_encoder_decoder:
        return "it is an encoder-decoder model, or the decoder of one"
    if config.model_type in _DRAFTERS:
        return "it drafts for another model"
    text = config.get_text_config()
    parts = sorted(set(type(config).sub_configs) - _TEXT_PARTS)
    text_class = transformers.AutoModelForCausalLM._model_mapping.get(type(text), None)
    if parts and (text_class is None or text is config):
        return f"its language model cannot be used by itself ({', '.join(parts)})"
    if text_class is None:
        return f"for Transformers, models of the type {config.model_type} are not causal language models"
    if text is config and text_class.__name__ not in (config.architectures or ()):
        return f"for models of the type {config.model_type}, only {text_class.__name__} generates text"
    others = set(getattr(text, "layer_types", None) or ()) - _LAYER_TYPES
    if others:
        return f"its layer types ({', '.join(sorted(others))}) keep more than keys and values, or select among them"
    if not hasattr(sys.modules[text_class.__module__], "ALL_ATTENTION_FUNCTIONS"):
        return "its layers do not call Transformers' attention interface"
    return None


def _decoder_of(model: Any) -> Any:
    """The whole model except its output layer; what some models return as their decoder is something else."""
    found = model.get_decoder()
    return found if hasattr(found, "get_input_embeddings") else model.base_model


def _first_position(decoder: torch.nn.Module) -> int:
    """The position of the first token: RoBERTa's positions begin after that of the padding token."""
    embeddings: Any = getattr(decoder, "embeddings", None)
    return embeddings.padding_idx + 1 if hasattr(embeddings, "create_position_ids_from_input_ids") else 0
