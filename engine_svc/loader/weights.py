"""Loads a checkpoint's tensors into a model's parameters."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence

import torch
from torch.nn import functional as F

from engine_svc.attention.base import CacheScales
from engine_svc.layers.context import PackedLayer
from engine_svc.layers.fused_experts import Transposed
from engine_svc.layers.parameter import LoadedParameter, TensorSlice
from engine_svc.loader.cache_scales import CheckpointScales, is_cache_scale
from engine_svc.loader.names import is_of_another, parameter_name
from engine_svc.loader.progress import with_progress
from engine_svc.loader.source import TensorSource
from engine_svc.models.config import ModelConfig
from engine_svc.models.decoder import Decoder
from engine_svc.models.encoder import Encoder
from engine_svc.models.encoder_config import NOBODYS
from engine_svc.models.heads import FeatureHead
from engine_svc.quantization.source import HeldTensor
from quire.errors import StartupError

logger = logging.getLogger(__name__)

# Standard deviations of random weights and of the scales of random codes; the last is an 8-bit exponent.
_DEVIATION, _SCALE_DEVIATION, _SCALE_EXPONENT = 0.02, 1e-3, 118

# Tensors that only some checkpoints have; they are computed, not loaded.
_IGNORED = ("rotary_emb.inv_freq", ".attn.bias", ".self_attn.bias", "attn.masked_bias")


def load_weights(
    model: Decoder | Encoder | FeatureHead, checkpoint: TensorSource, progress: bool, *, packs: bool = True
) -> Mapping[int, CacheScales]:
    """Loads every parameter, and packs each layer as soon as all of its parameters are loaded.

    So at most a layer or two exist in both forms at a time, and the memory of one is reused for the next.

    Args:
        progress: whether to report progress; see LoadingProgress.
        packs: whether to pack layers; False keeps the parameters as they were loaded.

    Returns:
        The checkpoint's scales for an 8-bit KV cache, by layer.

    Raises:
        StartupError: the checkpoint lacks a parameter, has one the model does not know, or one of another shape.
    """
    start = time.monotonic()
    loading, method = _Loading(model), model.quantization
    files = {
        method.adapted_name(name): file for name, file in checkpoint.names().items() if not loading.is_elsewhere(name)
    }

    def own_tensors() -> Iterator[tuple[str, TensorSlice]]:
        for name, source in checkpoint.tensors():
            if not loading.is_elsewhere(name):
                yield from _apart(name, source, model.config)

    loading.fill_missing(files)
    scales = CheckpointScales()
    for name, source in with_progress(method.adapted(own_tensors), len(files), progress):
        if is_cache_scale(name):
            scales.take(name, source)
            continue
        target, part = loading.parameter_name(name)
        if loading.is_ignored(name, target):
            continue
        targets = loading.find(target, part)
        if any(each in loading.packed for each in targets):  # the checkpoint has the tensor twice
            continue
        if not targets:
            if _is_zero_bias(name, source):
                continue
            raise StartupError(
                f"{files.get(name, checkpoint.folder)}: the model has no parameter for the checkpoint's "
                f"{checkpoint.own_name(name)}."
            )
        try:
            for each in targets:
                loading.parameters[each].load(_as_ours(name, target, source, model.config), part)
            if packs:
                loading.pack_layer_of(targets[0])
        except (ValueError, KeyError) as error:
            told = f"{files.get(name, checkpoint.folder)}: {checkpoint.own_name(name)}"
            raise StartupError(f"{told}: {error}") from error
    if missing := [name for name, parameter in loading.parameters.items() if parameter.missing]:
        raise StartupError(
            f"{checkpoint.folder}: the checkpoint lacks {', '.join(missing[:5])} ({len(missing)} in all)."
        )
    if packs:
        model.use_cache_scales(scales.by_layer)
    logger.info("loaded weights in %.1f s", time.monotonic() - start)
    return scales.by_layer


def load_parameters(model: Decoder, shard: TensorSource, progress: bool) -> None:
    """Loads and packs as `load_weights`, from tensors that are this rank's own parameters under their own names.

    Raises:
        StartupError: the shard lacks a parameter, has one the model does not have, or one of another shape or dtype.
    """
    loading, files, scales = _Loading(model), shard.names(), CheckpointScales()
    if unknown := [name for name in files if name not in loading.parameters and not is_cache_scale(name)]:
        raise StartupError(f"{files[unknown[0]]}: the model has no parameter {unknown[0]}.")
    if missing := [name for name in loading.parameters if name not in files]:
        raise StartupError(f"{shard.folder}: the shard lacks {', '.join(missing[:5])} ({len(missing)} in all).")
    for name, source in with_progress(shard.tensors(), len(files), progress):
        if is_cache_scale(name):
            scales.take(name, source)
            continue
        parameter, values = loading.parameters[name], source[...]
        if (values.shape, values.dtype) != (parameter.shape, parameter.dtype):
            raise StartupError(
                f"{files[name]}: {name} is {values.dtype} {list(values.shape)}, but the model's is {parameter.dtype} "
                f"{list(parameter.shape)}. Was it saved with other options?"
            )
        parameter.allocate()
        parameter.copy_(values)
        parameter.missing.clear()
        loading.pack_layer_of(name)
    model.use_cache_scales(scales.by_layer)


def _apart(name: str, source: TensorSlice, config: ModelConfig) -> Iterator[tuple[str, TensorSlice]]:
    """The tensors of keys and of values, if this one has the key and the value of each head beside each other."""
    if not config.key_values_name or f".{config.key_values_name}." not in name:
        yield name, source
        return
    heads = source[...].unflatten(0, (config.num_kv_heads, 2, -1))
    for index, module in enumerate(("k_proj", "v_proj")):
        yield name.replace(config.key_values_name, module), HeldTensor(heads[:, index].flatten(0, 1))


def _is_zero_bias(name: str, source: TensorSlice) -> bool:
    """Whether a tensor is an all-zero bias: AutoGPTQ writes biases for all layers that it quantizes."""
    return name.endswith(".bias") and not source[...].any()


def _as_ours(name: str, target: str, source: TensorSlice, config: ModelConfig) -> TensorSlice:
    """The matrix with outputs first, and normalized if the output layer is.

    Some families store weights transposed, but not the codes of quantized ones.
    """
    if target == "lm_head.weight" and config.head_norm != "none":
        return HeldTensor(F.normalize(source[...], dim=1 if config.head_norm == "rows" else 0, eps=1e-7))
    if not any(part in name for part in config.transposed_names) or len(source.get_shape()) != 2:
        return source
    found = source[:1, :1].dtype
    return Transposed(source) if found.is_floating_point and found.itemsize > 1 else source


class _Loading:
    """The state of loading: a model's parameters, their layers, and which layers are already packed."""

    def __init__(self, model: Decoder | Encoder | FeatureHead) -> None:
        self.parameters = {name: p for name, p in model.named_parameters() if isinstance(p, LoadedParameter)}
        self.packed: set[str] = set()
        self._model, self._config = model, model.config
        self._is_tied = model.is_tied
        self._ignored = {path: layer.ignored for path, layer in model.named_modules() if isinstance(layer, PackedLayer)}
        self._layers: dict[str, PackedLayer] = {}
        self._parts: dict[str, list[str]] = {}
        for path, layer in model.named_modules():
            for name, _ in layer.named_parameters() if isinstance(layer, PackedLayer) else ():
                self._layers[f"{path}.{name}"] = layer
                module, _, kind = name.rpartition(".")
                whole = ".".join(filter(None, (path, module.rpartition(".")[0], kind)))
                self._parts.setdefault(whole, []).append(f"{path}.{name}")

    def is_elsewhere(self, name: str) -> bool:
        """Whether a checkpoint's tensor belongs to another stage's layers; then it is not read."""
        return self._model.is_elsewhere(self.parameter_name(name)[0])

    def parameter_name(self, name: str) -> tuple[str, str]:
        """See engine_svc.loader.names.parameter_name."""
        return parameter_name(name, self._config.module_names, self._config.renames)

    def is_ignored(self, name: str, target: str) -> bool:
        """Whether a checkpoint's tensor need not be loaded.

        Args:
            target: the parameter that it would be loaded into.
        """
        path, _, kind = target.rpartition(".")
        layers = (path, path.rpartition(".")[0])  # experts have two matrices
        return (
            name.endswith(_IGNORED)
            or any(part in name for part in self._config.ignored_names)
            or is_of_another(target, self._config.num_layers)
            or f"{target}.".startswith(NOBODYS)
            or (self._is_tied and target.startswith("lm_head."))
            or any(kind in self._ignored.get(layer, ()) for layer in layers)
        )

    def find(self, target: str, part: str) -> Sequence[str]:
        """The parameters to load a tensor into; several if it holds all parts of a layer, and each part has its own."""
        path, _, kind = target.rpartition(".")
        for name in (f"{path}.{part.rpartition('.')[2]}.{kind}", target):
            if name in self.parameters or name in self.packed:
                return (name,)
        return self._parts.get(target, ())

    def fill_missing(self, names: Collection[str]) -> None:
        """Fills parameters that a checkpoint lacks with their defaults.

        Args:
            names: of the checkpoint's tensors.
        """
        present = {found for name in names for found in self.find(*self.parameter_name(name))}
        for name, parameter in self.parameters.items():
            if name not in present:
                parameter.fill_missing()

    def pack_layer_of(self, name: str) -> None:
        """Packs the layer that has the parameter, if none of its parameters is missing."""
        layer = self._layers.get(name)
        if layer is None or self.parameters[name].missing:
            return
        names = [other for other, owner in self._layers.items() if owner is layer]
        if any(self.parameters[other].missing for other in names):
            return
        for other in names:
            del self.parameters[other], self._layers[other]
        _pack(self._model, layer)
        self.packed.update(names)


def pack_weights(model: torch.nn.Module) -> None:
    """Packs all layers of a model whose weights are complete, one layer at a time."""
    for module in model.modules():
        if isinstance(module, PackedLayer):
            _pack(model, module)


def _pack(model: torch.nn.Module, layer: PackedLayer) -> None:
    layer.pack()
    if isinstance(model, Decoder) and model.host_weights is not None:
        model.host_weights.take(layer)


def randomize_weights(model: torch.nn.Module, seed: int) -> None:
    """Fills a model with random weights, for benchmarks of shapes: norms are 1, all else normal with a small deviation.

    Quantized weights get random codes and small scales.
    """
    generator = torch.Generator(device=next(model.parameters()).device).manual_seed(seed)
    for name, parameter in model.named_parameters():
        if isinstance(parameter, LoadedParameter):
            parameter.allocate()
        if "norm" in name:
            parameter.fill_(1.0)
        elif name.endswith(("A_log", "recurrent_param")):
            # These are stored as a negative rate, so that states decay.
            parameter.fill_(-1.0)
        else:
            randomize(parameter, name.rpartition(".")[2], generator)


def randomize(parameter: torch.Tensor, kind: str, generator: torch.Generator) -> None:
    """Fills a parameter with random values that suit `kind`, the last part of its name."""
    default = getattr(parameter, "default", None)
    if default is not None and not math.isnan(default):
        parameter.fill_(default)
    elif parameter.is_floating_point() and parameter.itemsize > 1:
        parameter.normal_(0.0, _DEVIATION if kind in ("weight", "bias") else _SCALE_DEVIATION, generator=generator)
    elif parameter.is_floating_point():
        parameter.copy_(torch.empty(parameter.shape, device=parameter.device).normal_(generator=generator))
    elif "scale" in kind:  # an 8-bit exponent
        parameter.fill_(_SCALE_EXPONENT)
    else:
        parameter.random_(generator=generator)
