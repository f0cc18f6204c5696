"""Heads: small float32 networks that compute classes or other vectors from hidden states."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import torch
import torch.nn.functional as F

from engine_svc.layers.context import LayerContext
from engine_svc.layers.linear import ReplicatedLinear
from engine_svc.layers.norm import LayerNorm
from engine_svc.layers.parameter import LoadedParameter, TensorSlice
from engine_svc.loader.formats.safetensors_files import opened
from engine_svc.models.encoder_config import HEAD, HeadLayer
from engine_svc.native.library import Kernels
from engine_svc.ops.base import Product
from engine_svc.ops.registry import create_ops
from engine_svc.pooling_form.sentence_transformers import Dense
from quire.errors import StartupError

_ACTIVATIONS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = MappingProxyType({
    "none": lambda values: values, "Identity": lambda values: values, "tanh": torch.tanh, "Tanh": torch.tanh,
    "relu": F.relu, "ReLU": F.relu, "gelu": F.gelu, "GELU": F.gelu, "silu": F.silu, "Sigmoid": torch.sigmoid,
    "gelu_tanh": lambda values: F.gelu(values, approximate="tanh"),
})  # fmt: skip


def in_float32(context: LayerContext, kernels: Kernels | None) -> LayerContext:
    """The context of layers that compute in float32, for a model of any dtype."""
    return replace(context, dtype=torch.float32, ops=create_ops(kernels, torch.float32, context.device))


class _Layer(ReplicatedLinear):
    """A linear layer, its activation and its norm."""

    def __init__(self, input_size: int, layer: HeadLayer, context: LayerContext) -> None:
        super().__init__(input_size, layer.size, bias=layer.bias, context=context)
        self._activation = _ACTIVATIONS[layer.activation]
        self.norm: LayerNorm | None = None
        if layer.norm_epsilon is not None:
            self.norm = LayerNorm(layer.size, layer.norm_epsilon, context=context, bias=layer.norm_bias)

    def adapted(self, product: Product, weight: torch.Tensor) -> Product:
        """See ReplicatedLinear.adapted; adapters may replace the whole matrix."""
        adapters, context = self._context.adapters, self._context
        return adapters.classes(context.path, product, weight, self.bias, context.ops) if adapters else product

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """float32 [rows, inputs] → [rows, outputs]."""
        output = self._activation(super().forward(hidden))
        return output if self.norm is None else self.norm(output)


class Head(torch.nn.Sequential):
    """A head of several layers: float32 [rows, hidden_size] → [rows, outputs]."""

    def __init__(self, hidden_size: int, layers: tuple[HeadLayer, ...], context: LayerContext) -> None:
        """
        Args:
            context: for float32 layers.
        """
        sizes = (hidden_size, *(layer.size for layer in layers))
        super().__init__(
            *(
                _Layer(size, layer, context.at(f"{HEAD}{index}"))
                for index, (size, layer) in enumerate(zip(sizes, layers, strict=False))
            )
        )


class TokenRows(torch.nn.Module):
    """Classes from the output layer's rows of some tokens: float32 [rows, hidden_size] → [rows, classes]."""

    def __init__(self, tokens: Sequence[int], hidden_size: int, subtracts: bool, context: LayerContext) -> None:
        """
        Args:
            subtracts: there is one class, the last token's logit minus the first one's.
            context: for float32 layers.
        """
        super().__init__()
        self._tokens, self._subtracts, self._ops = tokens, subtracts, context.ops
        self._product: Product | None = None
        self.weight = LoadedParameter((len(tokens), hidden_size), torch.float32, context.device)
        self.weight.loader = self._load

    def finish(self, rows: torch.Tensor | None = None) -> None:
        """Called once the weights are loaded.

        Args:
            rows: [tokens, hidden_size], from the embedding if it is tied. None means the loaded rows.
        """
        found = (self.weight.data if rows is None else rows).float()
        found = found[-1:] - found[:1] if self._subtracts else found
        self._product = self._ops.matrix(found.contiguous(), None)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """See the class."""
        assert self._product is not None
        return self._product(hidden, wide=True)

    def _load(self, source: TensorSlice, part: str) -> None:
        for row, token in enumerate(self._tokens):
            self.weight.write(part, self.weight[row : row + 1], source, (slice(token, token + 1), slice(None)))


def dense_layer(dense: Dense, context: LayerContext) -> Callable[[torch.Tensor], torch.Tensor]:
    """Loads a sentence-transformers Dense module from its own file: float32 [rows, inputs] → [rows, outputs].

    Raises:
        StartupError: the file is missing, or has other sizes.
    """
    file = dense.folder / "model.safetensors"
    if not file.is_file():
        raise StartupError(
            f"{dense.folder} has no model.safetensors; weights in other formats are not supported there."
        )
    with opened(file) as tensors:
        names = set(tensors.keys())
        weight = _tensor(tensors.get_tensor("linear.weight").float() if "linear.weight" in names else None, file)
        bias = tensors.get_tensor("linear.bias").float() if dense.bias and "linear.bias" in names else None
    if weight.shape != (dense.outputs, dense.inputs) or (bias is not None and bias.shape != (dense.outputs,)):
        raise StartupError(f"{file}: linear is {list(weight.shape)}, expected {[dense.outputs, dense.inputs]}.")
    bias = None if bias is None else bias.to(context.device)
    product: Product = context.ops.matrix(weight.to(context.device), bias)
    activation = _ACTIVATIONS[dense.activation]
    return lambda hidden: activation(product(hidden, wide=True))


def _tensor(found: torch.Tensor | None, file: Path) -> torch.Tensor:
    if found is None:
        raise StartupError(f"{file} lacks linear.weight.")
    return found
