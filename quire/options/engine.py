"""Options of the engine worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from quire.options.base import option
from quire.options.seed import seed_option

DTYPES = ("auto", "bfloat16", "float16", "float32", "half", "float")


@dataclass(frozen=True)
class EngineOptions:
    """Model, KV cache, scheduler and parallelism of one worker."""

    # Model
    dtype: str = option("auto", "Data type of weights and activations; auto takes the checkpoint's.", choices=DTYPES)
    max_model_len: int | None = option(
        None, "Longest sequence, prompt and output together, in tokens. Default: what the model's configuration says.",
        minimum=1,
    )  # fmt: skip
    seed: int | None = seed_option()
    generation_config: str = option(
        "auto",
        "Where sampling defaults come from: auto (the model's generation_config.json), vllm (neutral) or a folder. Its "
        "max_new_tokens is also the most that any request gets.",
    )  # fmt: skip
    override_generation_config: dict[str, Any] = option(
        {}, "Sampling defaults that win over the generation config, as JSON; null takes one away.", json_value=True
    )
    hf_overrides: dict[str, Any] = option({}, "Changes to the model's config.json, as JSON.", json_value=True)
    max_logprobs: int = option(20, "Most alternatives that logprobs may ask for.", minimum=0, maximum=1024)
    load_format: str = option(
        "auto", "auto and safetensors read weights; dummy makes random ones.", choices=("auto", "safetensors", "dummy")
    )
    model_impl: str = option(
        "auto", "Who runs the layers: quire, or transformers, that library's own code (any causal decoder; slower), "
        "or auto: quire for its own families and transformers for others.", choices=("auto", "quire", "transformers"),
    )  # fmt: skip
    use_tqdm_on_load: bool = option(True, "Shows a progress bar while weights load, on a terminal.")
    device: str = option("auto", "Where the model runs.", choices=("auto", "cpu", "cuda"))
    attention_backend: str = option(
        "auto", "Attention kernels: triton on GPUs, native (C++) or cpu (torch) elsewhere, or the plain reference.",
        choices=("auto", "triton", "native", "cpu", "reference"),
        others="The kernels are Quire's own: leave the option out where vLLM has FLASH_ATTN, FLASHINFER, XFORMERS or "
        "TORCH_SDPA, and each device gets its fastest.",
    )  # fmt: skip
    enforce_eager: bool = option(False, "Records no CUDA graphs: starts sooner and decodes slower.")
    cuda_graph_sizes: tuple[int, ...] = option(
        (), "Batch sizes of CUDA graphs, which decoding is rounded up to; one alone is the greatest. Default: up to "
        "512. For Quire's own models on a GPU.", minimum=1,
    )  # fmt: skip
    cpu_kernels: str = option(
        "auto", "Matrix products, norms and activations on a CPU: native (C++, bfloat16) where they can run, or torch.",
        choices=("auto", "native", "torch"),
    )  # fmt: skip
    quantization: str | None = option(
        None, "int8 quantizes the linear layers of any checkpoint while loading it, and their inputs as they come "
        "(dynamic W8A8, a scale for each output and each token).", aliases=("-q",), choices=("int8",),
        others="It quantizes checkpoints of 16 or 32 bits. Those that are quantized already (AWQ, GPTQ, FP8, GGUF and "
        "others) are not read, but gpt-oss in MXFP4, which needs no option.",
    )  # fmt: skip

    # KV cache
    block_size: int | None = option(None, "Tokens in one KV block. Default: 16.", minimum=1, maximum=512)
    gpu_memory_utilization: float = option(
        0.9,
        "Share of the GPU's memory for this worker's weights, activations and KV cache, whatever others hold: two "
        "workers of 0.5 fit one GPU.",
        minimum=0.01,
        maximum=1.0,
    )
    kv_cache_memory_bytes: int | None = option(
        None, "Size of the KV cache in bytes, in place of gpu-memory-utilization. On a CPU the default is a tenth of "
        "the free memory, 4 GiB at most.", minimum=1,
    )  # fmt: skip
    num_gpu_blocks_override: int | None = option(
        None, "Number of KV blocks, whatever the memory; for tests of preemption.", minimum=1
    )
    kv_cache_dtype: str = option(
        "auto", "Type of cached keys and values: auto is the model's own, fp8 (e4m3) and the others halve the cache. "
        "On a CPU, 8 bits run on torch's kernels, which are slower.", choices=("auto", "fp8", "fp8_e4m3", "fp8_e5m2"),
    )  # fmt: skip
    calculate_kv_scales: bool = option(
        False, "With kv-cache-dtype fp8: scales of keys and values are calculated for each layer at start. Off: 1."
    )
    enable_prefix_caching: bool = option(True, "Keeps the KV blocks of finished requests for prompts that begin alike.")

    swap_space: float = option(
        0.0, "GiB of host memory, of each rank, for KV blocks that the device's cache has to forget; they are copied "
        "back when a prompt or a preempted request wants them.", minimum=0,
    )  # fmt: skip

    # Scheduler
    max_num_batched_tokens: int | None = option(
        None, "Token budget of one step; by default 256 on a CPU and 2048 on a GPU (8192 from 64 GiB of memory on).",
        minimum=1,
    )  # fmt: skip
    max_num_seqs: int = option(256, "Most sequences running at once.", minimum=1, maximum=4096)
    scheduling_policy: str = option("fcfs", "Order of requests.", choices=("fcfs", "priority"))
    enable_chunked_prefill: bool = option(
        True, "Splits long prompts over steps. Off: a prompt runs whole, so the token budget must hold max-model-len."
    )
    max_num_partial_prefills: int = option(
        1, "Prompts that may be computed in part at the same time; a further one waits until one of them is complete.",
        minimum=1,
    )  # fmt: skip
    max_long_partial_prefills: int = option(
        1, "Prompts longer than long-prefill-token-threshold among them. Shorter prompts pass longer ones by.",
        minimum=1,
    )  # fmt: skip
    long_prefill_token_threshold: int = option(
        0, "A prompt with more tokens than this left is long: it computes only so many in a step. 0: none is long.",
        minimum=0,
    )  # fmt: skip
    async_scheduling: bool = option(
        True, "Plans the next step while one runs, where steps run on their own: on a GPU, and in the processes of mp."
    )
    max_waiting_requests: int = option(4096, "Requests that may wait; more are refused as overload.", minimum=1)

    # Parallelism
    tensor_parallel_size: int = option(1, "Ranks that share each layer.", aliases=("-tp",), minimum=1, maximum=64)
    distributed_executor_backend: str | None = option(
        None, "How ranks run: uni (in this process, one rank) or mp (a process each).", choices=("uni", "mp")
    )
    cpu_threads: int | None = option(
        None,
        "Threads of each rank's matrix products on a CPU. Default: the cores divided by the ranks; one for "
        "models of less than 32 million weights.",
        minimum=1,
    )
    step_timeout_seconds: float = option(
        300.0, "A step that takes longer means a wedged device: the worker reports NOT_SERVING.", minimum=1.0
    )
    step_grace_seconds: float = option(
        30.0, "When the step has not ended after this time more, the worker ends itself with exit code 70, for its "
        "supervisor to start it anew.", minimum=0.0,
    )  # fmt: skip

    # Fleet
    register_with: tuple[str, ...] = option(
        (), "Routers to register with (host:port). Default: none; the router finds its workers."
    )
    advertise_address: str | None = option(None, "host:port under which routers reach this worker.")
