"""Options of the KV cache."""

from __future__ import annotations

from dataclasses import dataclass

from quire.options.base import option

STATE_DTYPES = ("auto", "float32", "bfloat16", "float16")
KV_CACHE_DTYPES = ("auto", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2")


@dataclass(frozen=True)
class CacheOptions:
    """The KV cache."""

    block_size: int | None = option(
        None, "Tokens in one KV block. Default: 16 on a CPU, 64 on a GPU.", minimum=1, maximum=512, affects_output=True
    )
    gpu_memory_utilization: float = option(
        0.9,
        "Share of the GPU's memory for this worker's weights, activations and KV cache, whatever others hold: two "
        "workers of 0.5 fit one GPU.",
        minimum=0.01,
        maximum=1.0,
    )
    kv_cache_memory_bytes: int | None = option(
        None, "Size of the KV cache in bytes, the states of recurrent layers among them, in place of "
        "gpu-memory-utilization. On a CPU the default is a tenth of the free memory, 4 GiB at most, and beside it what "
        "these states take. As VLLM_CPU_KVCACHE_SPACE, in GiB.", minimum=1, variables=("VLLM_CPU_KVCACHE_SPACE",),
    )  # fmt: skip
    num_gpu_blocks_override: int | None = option(
        None, "Number of KV blocks, whatever the memory; for tests of preemption.", minimum=1
    )
    kv_cache_dtype: str = option(
        "auto", "Type of cached keys and values: auto is the model's own, fp8 (e4m3) and the others halve the cache; "
        "bfloat16 is for models that ask for 8 bits.", choices=KV_CACHE_DTYPES,
        refused={"fp8_inc": "It is for Gaudi, which Quire does not run on: take fp8."},
        affects_output=True,
    )  # fmt: skip
    calculate_kv_scales: bool = option(
        False,
        "With kv-cache-dtype fp8: scales of keys and values are calculated for each layer at start. Off: 1.",
        affects_output=True,
    )
    mamba_cache_dtype: str = option(
        "auto", "Type of what the convolutions of recurrent layers keep of each sequence (Mamba and its like): auto is "
        "the model's own.", choices=STATE_DTYPES, affects_output=True,
    )  # fmt: skip
    mamba_ssm_cache_dtype: str = option(
        "auto", "Type of these layers' states proper: auto is that of mamba-cache-dtype, and float32 where that is "
        "auto too, for each token adds a little to a state.", choices=STATE_DTYPES, affects_output=True,
    )  # fmt: skip
    enable_prefix_caching: bool = option(
        True,
        "Keeps the KV blocks of finished requests for prompts that begin alike. Always off for models with recurrent "
        "layers.",
    )
    kv_sharing_fast_prefill: bool = option(
        False, "Of no effect, as in vLLM, and said so at start: prompts are computed as they are without it."
    )
    swap_space: float = option(
        0.0, "GiB of host memory, of each rank, for KV blocks that the device's cache has to forget; they are copied "
        "back when a prompt or a preempted request wants them.", minimum=0, maximum=1 << 20,
    )  # fmt: skip
    cpu_offload_gb: float = option(
        0.0, "GiB of weights, of each GPU, that lie in host memory: those of as many whole layers as there is room "
        "for, which are copied to the GPU in each forward pass, each while the one before computes. Of no effect on a "
        "CPU.", minimum=0, maximum=1 << 20,
    )  # fmt: skip
