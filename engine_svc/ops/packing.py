"""Packs weights for the C++ kernels, and makes the products with them."""

from __future__ import annotations

import ctypes
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F

from engine_svc.memory import zeros_when_touched
from engine_svc.native import library
from engine_svc.native.library import GATES, INT8, KINDS, TYPES, Kernels
from engine_svc.ops.base import (
    Activation,
    ClampedSwish,
    ClippedSilu,
    ExpertAdapters,
    ExpertsForm,
    ExpertsProduct,
    LowRankMatrices,
    MatrixProduct,
    Rows,
)
from engine_svc.ops.weights import Int8Weight

_WORTH_COMPRESSING = 2 << 20  # bytes


class PackedWeight(Protocol):
    """Matrices of one shape, one after the other, in a form that the kernels take."""

    def is_for(self, dtype: torch.dtype) -> bool:
        """Whether inputs of this dtype can be multiplied with it."""
        ...

    def form(self) -> library.PackedForm:
        """The description passed to the kernels; it points into the held tensors, which must outlive it."""
        ...

    def held(self) -> list[torch.Tensor]:
        """All tensors it is made of, with matrices along the first dimension."""
        ...

    @property
    def layout(self) -> str:
        """Describes the form, apart from dtypes and shapes."""
        ...


class Packed(NamedTuple):
    """Unquantized matrices, one after the other: [count, values], as the instruction set level's form has them."""

    weights: torch.Tensor

    def is_for(self, dtype: torch.dtype) -> bool:
        """See PackedWeight.is_for."""
        return dtype == self.weights.dtype

    def form(self) -> library.PackedForm:
        """See PackedWeight.form."""
        return library.PackedForm(KINDS["plain"], self.weights.data_ptr())

    def held(self) -> list[torch.Tensor]:
        """See PackedWeight.held."""
        return [*self]

    @property
    def layout(self) -> str:
        """See PackedWeight.layout."""
        return "plain"


class PackedCompressed(NamedTuple):
    """bfloat16 matrices losslessly compressed to 12 bits per value; see compressed.h."""

    weights: torch.Tensor  # uint8 [count, bytes]

    def is_for(self, dtype: torch.dtype) -> bool:
        """See PackedWeight.is_for."""
        return dtype == torch.bfloat16

    def form(self) -> library.PackedForm:
        """See PackedWeight.form."""
        return library.PackedForm(KINDS["compressed"], self.weights.data_ptr(), compressed_bytes=self.weights.stride(0))

    def held(self) -> list[torch.Tensor]:
        """See PackedWeight.held."""
        return [*self]

    @property
    def layout(self) -> str:
        """See PackedWeight.layout."""
        return "compressed"


class PackedInt8(NamedTuple):
    """Int8 matrices, with each output's scale and the correction for the offset that the kernel adds to its inputs."""

    weights: torch.Tensor
    scale: torch.Tensor  # float32 [count, padded outputs]
    correction: torch.Tensor  # int32 [count, padded outputs]

    def is_for(self, dtype: torch.dtype) -> bool:
        """See PackedWeight.is_for."""
        return dtype in TYPES

    def form(self) -> library.PackedForm:
        """See PackedWeight.form."""
        return library.PackedForm(KINDS["int8"], *(tensor.data_ptr() for tensor in self))

    def held(self) -> list[torch.Tensor]:
        """See PackedWeight.held."""
        return [*self]

    @property
    def layout(self) -> str:
        """See PackedWeight.layout."""
        return "int8"


def pack(kernels: Kernels, weight: torch.Tensor | Int8Weight) -> Packed | PackedInt8:
    """Packs a matrix [outputs, size], or several [count, outputs, size]."""
    if isinstance(weight, Int8Weight):
        return _pack_int8(kernels, weight)
    return pack_plain(kernels, weight if weight.dim() == 3 else weight[None])


def pack_compressed(kernels: Kernels, weight: torch.Tensor) -> PackedCompressed | None:
    """Packs bfloat16 [outputs, size], or several [count, outputs, size], in fewer bits.

    Returns None where that does not pay or is impossible: the weight has another dtype, this level has no products with
    compressed weights, the weight is so small that it stays in a cache, or a matrix has too many different exponents.
    """
    outputs, size = weight.shape[-2:]
    if weight.dtype != torch.bfloat16 or weight.nbytes < _WORTH_COMPRESSING:
        return None
    if not (most := kernels.compressed_bytes(outputs, size)):
        return None
    matrices = weight.reshape(-1, outputs, size)
    packed = zeros_when_touched((len(matrices), most), torch.uint8)
    for matrix, target in zip(matrices, packed, strict=True):
        source = matrix.contiguous()  # named, so that it lives until it has been read
        if not (used := kernels.compress(source.data_ptr(), outputs, size, target.data_ptr())):
            return None
    # Of several matrices, each keeps the maximum size: another one of its shape, from any rank, may replace it.
    return PackedCompressed(packed if weight.dim() == 3 else packed[:, :used])


def pack_plain(kernels: Kernels, weights: torch.Tensor) -> Packed:
    """Packs each of [count, outputs, size]."""
    count, outputs, size = weights.shape
    kind = TYPES[weights.dtype]
    packed = zeros_when_touched((count, kernels.packed_values(kind, outputs, size)), weights.dtype)
    for weight, target in zip(weights, packed, strict=True):
        source = weight.contiguous()  # named, so that it lives until it has been read
        kernels.pack(kind, source.data_ptr(), outputs, size, target.data_ptr())
    return Packed(packed)


def _pack_int8(kernels: Kernels, weight: Int8Weight) -> PackedInt8:
    outputs, size = weight.shape[-2:]
    values, scale = weight.values.reshape(-1, outputs, size), weight.scale.reshape(-1, outputs)
    count, added = len(values), _padded(kernels, outputs) - outputs
    packed = PackedInt8(
        zeros_when_touched((count, kernels.packed_values(INT8, outputs, size)), torch.int8),
        F.pad(scale, (0, added)),
        torch.empty((count, _padded(kernels, outputs)), dtype=torch.int32),
    )
    for index, matrix in enumerate(values):
        targets = packed.weights[index].data_ptr(), packed.correction[index].data_ptr()
        kernels.pack_int8(matrix.data_ptr(), outputs, size, *targets)
    return packed


def _padded(kernels: Kernels, outputs: int) -> int:
    """The number of outputs of a packed matrix: rounded up to whole panels."""
    panel: int = kernels.panel()
    return -(-outputs // panel) * panel


def pointer(tensor: torch.Tensor | None) -> int | None:
    """The address of the tensor's data; None for no tensor."""
    return None if tensor is None else tensor.data_ptr()


def gate_arguments(activation: Activation) -> tuple[int, float, float]:
    """The kernels' number of the gate, and its slope and limit; a clipped gate's own limit takes the slope's place."""
    if isinstance(activation, ClampedSwish):
        return GATES["clamped"], activation.slope, activation.limit
    if isinstance(activation, ClippedSilu):
        return GATES["clipped"], activation.gate_limit, activation.limit
    return GATES[activation], 0.0, 0.0


def _padded_bias(kernels: Kernels, bias: torch.Tensor | None) -> torch.Tensor | None:
    """[..., outputs] → float32 [..., packed outputs]."""
    if bias is None:
        return None
    outputs = bias.shape[-1]
    return F.pad(bias.float(), (0, _padded(kernels, outputs) - outputs)).contiguous()


def matrix_product(
    kernels: Kernels, packed: PackedWeight, shape: torch.Size, bias: torch.Tensor | None
) -> MatrixProduct:
    """A product with one matrix.

    Args:
        shape: [outputs, size] before packing.
    """
    outputs, size = shape
    form, added = packed.form(), _padded_bias(kernels, bias)

    def product(hidden: torch.Tensor, wide: bool = False) -> torch.Tensor:
        assert packed.is_for(hidden.dtype)
        output = hidden.new_empty((hidden.shape[0], outputs), dtype=torch.float32 if wide else hidden.dtype)
        kernels.matrix(
            TYPES[hidden.dtype], hidden.data_ptr(), hidden.shape[0], hidden.stride(0), size, ctypes.addressof(form),
            pointer(added), output.data_ptr(), outputs, wide,
        )  # fmt: skip
        return output

    rows = None if form.input_order else _packed_rows(kernels, packed, shape)
    return MatrixProduct(product, packed.held(), rows)


def _packed_rows(kernels: Kernels, packed: PackedWeight, shape: torch.Size) -> Rows:
    """Looks up rows of one packed matrix [outputs, size] whose inputs are in their original order."""
    form, (outputs, size) = packed.form(), shape

    def rows(indices: torch.Tensor, dtype: torch.dtype, scale: float = 1.0, first: int | None = None) -> torch.Tensor:
        assert packed.is_for(dtype)
        output = torch.empty((len(indices), size), dtype=dtype)
        kernels.packed_rows(
            TYPES[dtype], ctypes.addressof(form), indices.data_ptr(), len(indices), first or 0, outputs, size, scale,
            output.data_ptr(),
        )  # fmt: skip
        return output

    return rows


def experts_product(
    kernels: Kernels,
    gate_up: PackedWeight,
    down: PackedWeight,
    shape: torch.Size,
    form: ExpertsForm = ExpertsForm(),
) -> ExpertsProduct:
    """A product with all experts' weights in one kernel call. `gate_up` and `down` may be packed in different forms.

    Args:
        shape: [experts, hidden_size, features inside an expert]: that of `down` before packing.
    """
    count, size, inner = shape
    biases = [_padded_bias(kernels, bias) for bias in (form.gate_up_bias, form.down_bias)]
    gate = gate_arguments(form.activation)
    first, second = gate_up.form(), down.form()

    def product(
        hidden: torch.Tensor,
        weights: torch.Tensor,
        expert_ids: torch.Tensor,
        adapters: ExpertAdapters | None = None,
    ) -> torch.Tensor:
        assert gate_up.is_for(hidden.dtype)
        assert down.is_for(hidden.dtype)
        output = hidden.new_empty(hidden.shape)
        # The kernel expects each token's choices right after the previous token's.
        weights, expert_ids = weights.contiguous(), expert_ids.contiguous()
        told = library.ExpertsForm(
            *gate, form.weighs_inputs, form.is_gated, *(pointer(bias) for bias in biases), _adapters(adapters)
        )
        kernels.experts(
            TYPES[hidden.dtype], hidden.data_ptr(), hidden.shape[0], hidden.stride(0), expert_ids.data_ptr(),
            weights.data_ptr(), weights.shape[1], count, ctypes.addressof(first), ctypes.addressof(second),
            output.data_ptr(), size, inner, ctypes.byref(told),
        )  # fmt: skip
        return output

    held = [*gate_up.held(), *down.held(), *(bias for bias in biases if bias is not None)]
    return ExpertsProduct(product, held, f"{gate_up.layout}, {down.layout}")


def _adapters(adapters: ExpertAdapters | None) -> library.Adapters:
    if adapters is None:
        return library.Adapters()
    stacks = (_low_rank(adapters.gate_up), _low_rank(adapters.down))
    return library.Adapters(adapters.adapters.data_ptr(), TYPES[adapters.down.down.dtype], *stacks)


def _low_rank(matrices: LowRankMatrices) -> library.LowRank:
    pointers = (matrices.down, matrices.up, matrices.ranks, matrices.starts)
    return library.LowRank(*(tensor.data_ptr() for tensor in pointers), *matrices.down.shape[1:3])
