"""What a machine can do: its memory bandwidth, and its fastest rate of matrix products by number of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks.timing import best_seconds
from engine_svc.native.library import choose_kernels
from engine_svc.ops.registry import create_ops
from engine_svc.quantization.base import ModelForm, Place
from engine_svc.quantization.registry import create_method

_READ_VALUES = 2**28  # 1 GiB, more than any processor cache holds
# (outputs, inputs) of weights. The first ones stay in a cache, on a CPU each core's own part; the others must be read
# from memory. So the rate for few rows is not limited by memory bandwidth, which is a separate floor.
_WEIGHTS = {
    "cpu": ((1024, 1024), (8192, 4096)),
    "cuda": ((5120, 2048), (16384, 8192), (28672, 4096)),  # 20, 256 and 224 MiB in bfloat16; an H100's cache has 50
}
# Whether oneDNN supports a dtype on this machine.
_SUPPORTED = {
    torch.bfloat16: torch.ops.mkldnn._is_mkldnn_bf16_supported,
    torch.float16: torch.ops.mkldnn._is_mkldnn_fp16_supported,
}
# Environment variables that keep torch's libraries to a level's instructions; they are read when these first run.
TORCH_LIMITS: Mapping[str, Mapping[str, str]] = {
    "avx2": {"ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"},
    "avx512": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"},
    "avx512_vnni": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_VNNI"},
    "avx512_bf16": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"},
}


@dataclass(frozen=True)
class Form:
    """How a model is computed."""

    kernels: str  # of --cpu-kernels
    dtype: str
    quantization: str | None

    @property
    def torch_dtype(self) -> torch.dtype:
        found = getattr(torch, self.dtype)
        assert isinstance(found, torch.dtype)
        return found


@dataclass(frozen=True)
class Machine:
    """A machine's rates."""

    bytes_per_second: float
    operations_per_second: dict[int, float]  # of matrix products, by number of rows

    def rate(self, rows: int) -> float:
        """Operations per second at a number of rows, linearly interpolated between measured ones."""
        known = [0, *sorted(self.operations_per_second)]
        return float(np.interp(rows, known, [0.0, *(self.operations_per_second[count] for count in known[1:])]))


def measure_machine(form: Form, rows: Sequence[int], device: torch.device) -> Machine:
    """Measures both rates with as many threads as the engine has."""
    with torch.inference_mode():
        products = [(size, product) for size in _WEIGHTS[device.type] for product in _products(form, *size, device)]
        rates = {count: max(_rate(product, count, *size, form, device) for size, product in products) for count in rows}
        return Machine(read_rate(device), rates)


def read_rate(device: torch.device) -> float:
    """Memory bandwidth in bytes per second; a sum reads one stream per thread, a dot product two."""
    data = torch.ones(_READ_VALUES, device=device)
    first, second = data.chunk(2)
    seconds = min(best_seconds(data.sum, device), best_seconds(lambda: torch.dot(first, second), device))
    return int(data.nbytes) / seconds


def _products(form: Form, outputs: int, size: int, device: torch.device) -> Iterator[Callable[[torch.Tensor], object]]:
    """The engine's product, and torch's; on a GPU with a bias, for which cuBLAS chooses among other kernels.

    If a CPU level has no instructions for a dtype, torch may be faster in float32.
    """
    dtype = form.torch_dtype
    weight = torch.randn(outputs, size, device=device).to(dtype)
    ops = create_ops(choose_kernels(form.kernels, device), dtype, device)
    method = create_method(form.quantization, None, ModelForm(ops, dtype)).layer(Place("linear", ("model.layers.0",)))
    yield ops.matrix(method.weight({"weight": weight}), None)
    if device.type == "cuda":
        bias = torch.zeros(outputs, device=device, dtype=dtype)
        yield lambda hidden: F.linear(hidden, weight, bias)
        return
    if form.quantization:
        integers = torch.randint(-127, 128, (size, outputs), dtype=torch.int8)
        yield lambda hidden: torch._int_mm(hidden.to(torch.int8), integers)
        return
    if dtype in _SUPPORTED and _SUPPORTED[dtype]():
        yield _packed_product(weight)
    yield _packed_product(weight.float())


def _packed_product(weight: torch.Tensor) -> Callable[[torch.Tensor], object]:
    """oneDNN's product with a weight in its preferred layout."""
    packed = torch.ops.mkldnn._reorder_linear_weight(weight)
    return lambda hidden: torch.ops.mkldnn._linear_pointwise(hidden.to(weight.dtype), packed, None, "none", [], "")


def _rate(
    product: Callable[[torch.Tensor], object], rows: int, outputs: int, size: int, form: Form, device: torch.device
) -> float:
    hidden = torch.randn(rows, size, device=device).to(form.torch_dtype)
    return 2 * outputs * size * rows / best_seconds(lambda: product(hidden), device)
