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
    """Devices and kernels."""

    device: str = option(
        "auto", "Device that the model runs on.", choices=("auto", "cpu", "cuda"),
        others="Quire runs only on CPUs and NVIDIA GPUs.", affects_output=True,
    )  # fmt: skip
    attention_backend: str = option(
        "auto", "Attention kernels: triton on GPUs, native (C++) or cpu (torch) on CPUs, or the plain reference.",
        choices=("auto", *ATTENTION_BACKENDS),
        others="Quire has its own kernels: instead of vLLM's FLASH_ATTN, FLASHINFER, XFORMERS or TORCH_SDPA, leave the "
        "option out, and each device gets its fastest kernels.",
        affects_output=True,
    )  # fmt: skip
    cpu_kernels: str = option(
        "auto", "CPU kernels: the C++ ones of an instruction level, or torch's operators. Default: the highest level "
        "that the processor supports.",
        choices=("auto", *CPU_LEVELS, "torch"),
        affects_output=True,
    )  # fmt: skip
    batch_invariant: bool | None = option(
        None,
        "Makes a request's tokens independent of what shares its batch: what is computed for a sequence depends only "
        "on the sequence. Default: on where it costs nothing, which is with Quire's own kernels on a CPU. On a GPU, it "
        "uses special kernels, which are slower; see docs/reproducibility.md.",
        variables=("VLLM_BATCH_INVARIANT",),
        affects_output=True,
    )
    cpu_threads: int | None = option(
        None,
        "Threads per rank for CPU kernels. Default: one per core of the rank, within what the control group allows.",
        minimum=1,
    )
    cpu_threads_bind: str = option(
        "auto",
        "Processors that each rank's threads are bound to on a CPU. auto: on a machine with several NUMA nodes, the "
        "cores of the rank's own nodes; all: every processor, including hyperthreads, divided evenly; nobind: none, "
        "the system decides; or a list for each rank, such as 0-31|32-63.",
        metavar="auto|all|nobind|LISTS",
        variables=("VLLM_CPU_OMP_THREADS_BIND",),
    )
    cpu_reserved_cores: int | None = option(
        None, "Cores of each rank that --cpu-threads-bind auto, all and nobind leave free for the services and the "
        "event loop. Default: 1 if auto binds threads, else none.",
        minimum=0, variables=("VLLM_CPU_NUM_OF_RESERVED_CPU",),
    )  # fmt: skip
    numa_bind_nodes: tuple[int, ...] = option(
        (), "NUMA node of each rank on this machine, GPU ranks included: its threads run on the node's processors, and "
        "a GPU rank's host memory is on the node. Takes several words; one for each GPU or CPU rank, over all engines.",
        minimum=0, following=r"\d+", metavar="NODE...",
    )  # fmt: skip
    numa_bind_cpus: tuple[str, ...] = option(
        (), "Processors of each rank on this machine, GPU ranks included, such as 0-15 16-31, instead of all those of "
        "its node. Takes several words.", following=r"\d[\d,-]*", metavar="LIST...",
    )  # fmt: skip
    enforce_eager: bool = option(
        False, "Records no CUDA graphs, and no kernel calls on a CPU: starts faster, decodes more slowly."
    )
    cuda_graph_sizes: tuple[int, ...] = option(
        (), "Sizes of CUDA graphs: numbers of sequences for decode steps, and of new tokens for steps with prompts. "
        "Each step uses the next larger graph. A single number is the largest size. Default: up to 512 sequences, and "
        "up to the number of tokens beyond which a GPU computes for longer than the host takes to launch the kernels. "
        "For Quire's own models on a GPU.", minimum=1,
    )  # fmt: skip
