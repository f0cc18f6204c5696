"""Options of devices and kernels."""

from __future__ import annotations

from dataclasses import dataclass

from quire.options.base import option

# Levels of CPU instructions, each with C++ kernels of its own.
CPU_LEVELS = (
    "avx2", "avx512", "avx512_vnni", "avx512_bf16", "amx", "neon", "neon_dotprod", "neon_bf16",
)  # fmt: skip
ATTENTION_BACKENDS = ("triton", "native", "cpu", "reference")


@dataclass(frozen=True)
class KernelOptions:
    """Where and by which kernels a rank computes."""

    device: str = option(
        "auto", "Where the model runs.", choices=("auto", "cpu", "cuda"),
        others="Quire runs on CPUs and NVIDIA's GPUs alone.", affects_output=True,
    )  # fmt: skip
    attention_backend: str = option(
        "auto", "Attention kernels: triton on GPUs, native (C++) or cpu (torch) elsewhere, or the plain reference.",
        choices=("auto", *ATTENTION_BACKENDS),
        others="The kernels are Quire's own: leave the option out where vLLM has FLASH_ATTN, FLASHINFER, XFORMERS or "
        "TORCH_SDPA, and each device gets its fastest.",
        affects_output=True,
    )  # fmt: skip
    cpu_kernels: str = option(
        "auto", "Kernels on a CPU: the C++ ones of a level of instructions, torch's operators, or by default those of "
        "the highest level that the processor has.",
        choices=("auto", *CPU_LEVELS, "torch"),
        affects_output=True,
    )  # fmt: skip
    batch_invariant: bool | None = option(
        None,
        "The same tokens whatever shares the batch: what is computed for a sequence depends on it alone. Default: "
        "where it costs nothing, by Quire's own kernels on a CPU. On a GPU, kernels of its own, which are slower; see "
        "docs/reproducibility.md.",
        variables=("VLLM_BATCH_INVARIANT",),
        affects_output=True,
    )
    cpu_threads: int | None = option(
        None,
        "Threads of each rank's kernels on a CPU. Default: one for each core that the rank has, within what the "
        "control group allows.",
        minimum=1,
    )
    cpu_threads_bind: str = option(
        "auto",
        "Processors that each rank's threads are bound to on a CPU. auto: on a machine with several NUMA nodes, the "
        "cores of the rank's own nodes; all: every processor, hyperthreads too, in even parts; nobind: none, the "
        "system chooses; or a list for each rank, such as 0-31|32-63.",
        metavar="auto|all|nobind|LISTS",
        variables=("VLLM_CPU_OMP_THREADS_BIND",),
    )
    cpu_reserved_cores: int | None = option(
        None, "Cores of each rank that cpu-threads-bind auto, all and nobind leave to the services and the event loop. "
        "Default: 1 where auto binds threads, else none.", minimum=0, variables=("VLLM_CPU_NUM_OF_RESERVED_CPU",),
    )  # fmt: skip
    enforce_eager: bool = option(
        False, "Records no CUDA graphs, nor on a CPU the kernels' calls: starts sooner and decodes slower."
    )
    cuda_graph_sizes: tuple[int, ...] = option(
        (), "Sizes of CUDA graphs: sequences, which decoding is rounded up to, and new tokens, which steps with "
        "prompts are; one alone is the greatest. Default: up to 512 sequences, and to as many tokens as take a GPU "
        "longer than their launches the host. For Quire's own models on a GPU.", minimum=1,
    )  # fmt: skip
