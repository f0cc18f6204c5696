"""Options of devices and kernels."""

from __future__ import annotations

from dataclasses import dataclass

from quire.options.base import option

ATTENTION_BACKENDS = ("triton", "native", "cpu", "reference")


@dataclass(frozen=True)
class KernelOptions:
    """Where and by which kernels a rank computes."""

    device: str = option("auto", "Where the model runs.", choices=("auto", "cpu", "cuda"), affects_output=True)
    attention_backend: str = option(
        "auto", "Attention kernels: triton on GPUs, native (C++) or cpu (torch) elsewhere, or the plain reference.",
        choices=("auto", *ATTENTION_BACKENDS),
        others="The kernels are Quire's own: leave the option out where vLLM has FLASH_ATTN, FLASHINFER, XFORMERS or "
        "TORCH_SDPA, and each device gets its fastest.",
        affects_output=True,
    )  # fmt: skip
    cpu_kernels: str = option(
        "auto", "Matrix products, norms and activations on a CPU: native (C++, bfloat16) where they can run, or torch.",
        choices=("auto", "native", "torch"),
        affects_output=True,
    )  # fmt: skip
    cpu_threads: int | None = option(
        None,
        "Threads of each rank's matrix products on a CPU. Default: the cores divided by the ranks; one for "
        "models of less than 32 million weights.",
        minimum=1,
    )
    enforce_eager: bool = option(False, "Records no CUDA graphs: starts sooner and decodes slower.")
    cuda_graph_sizes: tuple[int, ...] = option(
        (), "Batch sizes of CUDA graphs, which decoding is rounded up to; one alone is the greatest. Default: up to "
        "512. For Quire's own models on a GPU.", minimum=1,
    )  # fmt: skip
