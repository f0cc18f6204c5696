"""The environment variables in vLLM's documentation, and what each does here."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from types import MappingProxyType

_BUILD = "It is for building vLLM."
_HARDWARE = "It is for hardware that Quire does not support."
_THERE_ALONE = "It is an internal switch of vLLM with no counterpart in Quire."
_COMPILER = "Quire does not use torch.compile."
_TRANSFER = "Quire exchanges KV blocks through a folder or over gRPC: --kv-transfer-config."
_HARMONY = "Quire does not run tools: clients run their own."
_RAY = (
    "Plans go to Ray's actors over Quire's own connections, and tensors over NCCL or Gloo; no compiled graph is needed."
)
_INTERNAL = "The services of a stack communicate over gRPC on free ports, with their own deadlines."
_KERNELS = "Quire has its own kernels, and each device gets its fastest; --attention-backend selects attention kernels."
_MEDIA = "Quire keeps images, videos and audio in memory only."
_QUANTIZED = "For each weight format, there is one kernel per device."
_REPORTS = "Quire sends no usage reports."
_SCALES = "--calculate-kv-scales measures the scales, without a constant."
_LOGGING = "--log-level, --log-format, --log-file and --log-config-file configure logging."

# Name, or beginning with an asterisk → why it has no effect, reported at start. Variables with an effect are listed at
# their options, see `option(variables=…)`.
WITHOUT_EFFECT: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(
            ("VLLM_TARGET_DEVICE", "VLLM_USE_PRECOMPILED", "VLLM_TEST_USE_PRECOMPILED_NIGHTLY_WHEEL",
             "VLLM_MAIN_CUDA_VERSION", "VLLM_SKIP_PRECOMPILED_VERSION_SUFFIX", "VLLM_DOCKER_BUILD_CONTEXT",
             "VLLM_USE_PRECOMPILED_RUST"), _BUILD
        ),
        **dict.fromkeys(
            ("VLLM_OPENVINO_DEVICE", "VLLM_OPENVINO_KVCACHE_SPACE", "VLLM_OPENVINO_CPU_KV_CACHE_PRECISION",
             "VLLM_OPENVINO_ENABLE_QUANTIZED_WEIGHTS", "VLLM_XLA_CACHE_PATH", "VLLM_XLA_CHECK_RECOMPILATION",
             "VLLM_ROCM_FP8_PADDING", "VLLM_USE_HPU_CONTIGUOUS_CACHE_FETCH", "VLLM_TPU_DISABLE_TOPK_TOPP_OPTIMIZATION",
             *(f"VLLM_{family}_*" for family in ("ROCM", "XPU", "TPU", "XLA", "HPU", "NEURON", "OPENVINO"))),
            _HARDWARE,
        ),
        **dict.fromkeys(
            ("VLLM_RINGBUFFER_WARNING_INTERVAL", "VLLM_TEST_DYNAMO_FULLGRAPH_CAPTURE", "VLLM_USE_V1",
             "VLLM_ENABLE_V1_MULTIPROCESSING", "VLLM_CI_USE_S3", "VLLM_TEST_FORCE_MIXED_CHUNKED_PREFILL",
             "VLLM_V1_OUTPUT_PROC_CHUNK_SIZE", "VLLM_TRACE_FUNCTION", "VLLM_CPU_MOE_PREPACK", "VLLM_CUDART_SO_PATH",
             "VLLM_INSTANCE_ID", "VLLM_LOGITS_PROCESSOR_THREADS", "VLLM_ALLOW_INSECURE_SERIALIZATION",
             "VLLM_USE_V2_MODEL_RUNNER", "VLLM_USE_RUST_FRONTEND", "VLLM_RUST_FRONTEND_PATH", "VLLM_USE_FASTOKENS",
             "VLLM_DISABLE_LOG_LOGO", "VLLM_GC_DEBUG", "VLLM_DEBUG_*", "VLLM_CUDA_COMPATIBILITY_PATH",
             "VLLM_ENABLE_CUDA_COMPATIBILITY", "VLLM_TOOL_PARSE_REGEX_TIMEOUT_SECONDS", "VLLM_WSL2_ENABLE_PIN_MEMORY",
             "VLLM_USE_EXPERIMENTAL_PARSER_CONTEXT", "VLLM_DISABLE_REQUEST_ID_RANDOMIZATION",
             "VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE", "VLLM_COMPUTE_NANS_IN_LOGITS",
             "VLLM_RANDOMIZE_DP_DUMMY_INPUTS", "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS",
             "VLLM_WEIGHT_OFFLOADING_*", "VLLM_FASTSAFETENSORS_QUEUE_SIZE", "VLLM_ELASTIC_EP_*"),
            _THERE_ALONE,
        ),
        **dict.fromkeys(
            ("VLLM_USE_STANDALONE_COMPILE", "VLLM_DISABLE_COMPILE_CACHE", "VLLM_COMPILE_CACHE_SAVE_FORMAT",
             "VLLM_USE_AOT_COMPILE", "VLLM_FORCE_AOT_LOAD", "VLLM_USE_MEGA_AOT_ARTIFACT", "VLLM_USE_BYTECODE_HOOK",
             "VLLM_ENABLE_INDUCTOR_*", "VLLM_ENABLE_PREGRAD_PASSES", "VLLM_PATTERN_MATCH_DEBUG",
             "VLLM_USE_LAYERNAME"), _COMPILER,
        ),
        **dict.fromkeys(("VLLM_NIXL_*", "VLLM_MOONCAKE_*"), _TRANSFER),
        **dict.fromkeys(
            ("VLLM_GPT_OSS_SYSTEM_TOOL_MCP_LABELS", "VLLM_TOOL_JSON_ERROR_AUTOMATIC_RETRY"), _HARMONY
        ),
        **dict.fromkeys(
            ("VLLM_USE_RAY_SPMD_WORKER", "VLLM_USE_RAY_COMPILED_DAG", "VLLM_USE_RAY_COMPILED_DAG_NCCL_CHANNEL",
             "VLLM_USE_RAY_COMPILED_DAG_OVERLAP_COMM", "VLLM_USE_RAY_*"), _RAY
        ),
        **dict.fromkeys(
            ("VLLM_RPC_BASE_PATH", "VLLM_RPC_TIMEOUT", "VLLM_LOOPBACK_IP", "VLLM_DP_RANK_LOCAL",
             "VLLM_MSGPACK_ZERO_COPY_THRESHOLD", "VLLM_MQ_MAX_CHUNK_BYTES_MB", "VLLM_OBJECT_STORAGE_SHM_BUFFER_NAME"),
            _INTERNAL,
        ),
        **dict.fromkeys(
            ("VLLM_USE_TRITON_FLASH_ATTN", "VLLM_FLASH_ATTN_VERSION", "VLLM_ATTENTION_BACKEND",
             "VLLM_USE_FLASHINFER_SAMPLER", "VLLM_FLASHINFER_FORCE_TENSOR_CORES", "VLLM_MLA_DISABLE",
             "VLLM_FUSED_MOE_CHUNK_SIZE", "VLLM_ENABLE_MOE_ALIGN_BLOCK_SIZE_TRITON", "VLLM_USE_FLASHINFER_MOE_FP8",
             "VLLM_USE_FLASHINFER_MOE_FP16", "VLLM_FLASHINFER_MOE_BACKEND", "VLLM_USE_FLASHINFER_*",
             "VLLM_FLASHINFER_*", "VLLM_BLOCKSCALE_FP8_GEMM_FLASHINFER", "VLLM_ENABLE_FUSED_MOE_ACTIVATION_CHUNKING",
             "VLLM_USE_FUSED_MOE_GROUPED_TOPK", "VLLM_MOE_DP_CHUNK_SIZE", "VLLM_KV_CACHE_LAYOUT",
             "VLLM_SSM_CONV_STATE_LAYOUT", "VLLM_TRITON_*", "VLLM_USE_CUDNN_PREFILL", "VLLM_CPU_SGL_KERNEL",
             "VLLM_CPU_ATTN_SPLIT_KV", "VLLM_USE_TRTLLM_*", "VLLM_SPARSE_INDEXER_MAX_LOGITS_MB", "VLLM_DBO_COMM_SMS",
             "VLLM_ALLREDUCE_*", "VLLM_USE_NCCL_SYMM_MEM", "VLLM_NCCL_INCLUDE_PATH", "VLLM_DISABLE_PYNCCL",
             "VLLM_DEEPEP_*", "VLLM_TUNED_CONFIG_FOLDER", "VLLM_USE_OINK_OPS", "VLLM_FLOAT32_MATMUL_PRECISION",
             "VLLM_ENABLE_FLA_PACKED_RECURRENT_DECODE", "VLLM_USE_BREAKABLE_CUDAGRAPH", "VLLM_ENABLE_CUDAGRAPH_GC",
             "VLLM_SHARED_EXPERTS_STREAM_TOKEN_THRESHOLD", "VLLM_DISABLE_SHARED_EXPERTS_STREAM",
             "VLLM_MULTI_STREAM_GEMM_TOKEN_THRESHOLD", "VLLM_LORA_DISABLE_PDL", "VLLM_LORA_ENABLE_DUAL_STREAM"),
            _KERNELS,
        ),
        **dict.fromkeys(
            ("VLLM_USE_TRITON_AWQ", "VLLM_DISABLED_KERNELS", "VLLM_MARLIN_USE_ATOMIC_ADD", "VLLM_USE_DEEP_GEMM",
             "VLLM_TEST_FORCE_FP8_MARLIN", "VLLM_USE_DEEP_GEMM_*", "VLLM_MOE_USE_DEEP_GEMM", "VLLM_DEEP_GEMM_WARMUP",
             "VLLM_MARLIN_INPUT_DTYPE", "VLLM_CPU_INT4_W4A8", "VLLM_MAX_TOKENS_PER_EXPERT_FP4_MOE", "VLLM_MXFP4_*",
             "VLLM_MXFP8_*", "VLLM_NVFP4_*", "VLLM_HUMMING_*", "VLLM_USE_NVFP4_CT_EMULATIONS"), _QUANTIZED,
        ),
        **dict.fromkeys(
            ("VLLM_USAGE_STATS_SERVER", "VLLM_NO_USAGE_STATS", "VLLM_DO_NOT_TRACK", "VLLM_USAGE_SOURCE"), _REPORTS
        ),
        **dict.fromkeys(("Q_SCALE_CONSTANT", "K_SCALE_CONSTANT", "V_SCALE_CONSTANT"), _SCALES),
        **dict.fromkeys(
            ("VLLM_CONFIGURE_LOGGING", "VLLM_LOGGING_PREFIX", "VLLM_LOGGING_STREAM", "VLLM_LOGGING_COLOR"), _LOGGING
        ),
        **dict.fromkeys(
            ("VLLM_ASSETS_CACHE", "VLLM_ASSETS_CACHE_MODEL_CLEAN", "VLLM_MEDIA_CACHE", "VLLM_MEDIA_CACHE_*"), _MEDIA
        ),
        **dict.fromkeys(
            ("VLLM_MEDIA_LOADING_THREAD_COUNT", "VLLM_MAX_AUDIO_PREPROCESS_WORKERS", "VLLM_VIDEO_LOADER_BACKEND",
             "VLLM_MEDIA_CONNECTOR", "VLLM_MM_HASHER_ALGORITHM"),
            "The tokenizer service reads images, videos and audio in processes of its own.",
        ),
        **dict.fromkeys(
            ("VLLM_MAX_AUDIO_CLIP_FILESIZE_MB", "VLLM_MAX_AUDIO_DECODE_DURATION_S"),
            "docs/media.md has the limits of files; --max-body-bytes limits those that requests bring.",
        ),
        **dict.fromkeys(
            ("VLLM_LORA_RESOLVER_CACHE_DIR", "VLLM_LORA_RESOLVER_HF_REPO_LIST"),
            "Adapters are loaded by --lora-modules, or by POST /v1/load_lora_adapter with "
            "--allow-runtime-lora-updating.",
        ),
        "VLLM_MEDIA_URL_ALLOW_REDIRECTS": "Redirects of media URLs are never followed.",
        "VLLM_MEDIA_FETCH_MAX_RETRIES": "A media URL is fetched once; the client may retry.",
        "VLLM_ENABLE_COHERE_API": "/cohere/v2/chat is always served.",
        "VLLM_ENABLE_RESPONSES_API_STORE": "Responses are stored where --responses-store says.",
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "Idle connections are kept open for longer than clients and proxies keep them.",
        "VLLM_MODEL_REDIRECT_PATH": "Give the model's folder as the model, and its names by --served-model-name.",
        "VLLM_SKIP_MODEL_NAME_VALIDATION": "Requests name a model of --served-model-name or --model-alias, or none.",
        "VLLM_SLEEP_WHEN_IDLE": "An idle engine always waits without using a processor.",
        "VLLM_SYSTEM_START_DATE": "Chat templates get the current date.",
        "VLLM_PREFIX_CACHE_RETENTION_INTERVAL": "Blocks are kept until their memory is needed.",
        "VLLM_ENFORCE_STRICT_TOOL_CALLING": "--strict-tool-calls makes all calls fit their schemas.",
        "VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES": "--kv-events-config always publishes block hashes as integers.",
        "VLLM_ENGINE_READY_TIMEOUT_S": "--startup-timeout-seconds sets how long the services may take to start.",
        "VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS": "--drain-timeout-seconds sets how long requests may take to finish.",
        "VLLM_LOG_MODEL_INSPECTION": "`--log-level debug` logs more.",
        "VLLM_CUSTOM_SCOPES_FOR_PROFILING": "--profiler-config sets what a profile contains.",
        "VLLM_NVTX_SCOPES_FOR_PROFILING": "--profiler-config sets what a profile contains.",
        "VLLM_V1_USE_OUTLINES_CACHE": "Compiled constraints are kept only in memory; see --constraint-cache-bytes.",
        "VLLM_LOG_BATCHSIZE_INTERVAL": "Batch sizes are in /metrics.",
        "VLLM_CONFIG_ROOT": "The only configuration file is the one given by --config.",
        "VLLM_CACHE_ROOT": "Caches are in XDG_CACHE_HOME or ~/.cache, and models in --download-dir.",
        "VLLM_NCCL_SO_PATH": "Quire uses the NCCL that comes with torch.",
        "VLLM_SKIP_P2P_CHECK": "NCCL detects by itself which GPUs can access each other.",
        "VLLM_WORKER_MULTIPROC_METHOD": "Ranks are always started as new processes.",
        "VLLM_KEEP_ALIVE_ON_ENGINE_DEATH": "The gateway always stays up, and engines are restarted.",
        "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "--rope-scaling extends a model's length, as far as its positions reach.",
        "VLLM_PLUGINS": "vLLM's plugins depend on vLLM's classes; Quire's plugins are installed packages.",
        "VLLM_V0_USE_OUTLINES_CACHE": "Compiled constraints are kept only in memory; see --constraint-cache-bytes.",
        "VLLM_SKIP_WARMUP": "Workers always warm up before they are ready.",
    }
)  # fmt: skip
_FAMILIES = tuple(name for name in WITHOUT_EFFECT if name.endswith("*"))

# Variables shared with other programs, which are not reported.
OF_OTHERS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("MAX_JOBS", "NVCC_THREADS", "CMAKE_BUILD_TYPE", "VERBOSE", "CUDA_HOME"), _BUILD),
        "LOCAL_RANK": "It is for the ranks of external_launcher, which use the GPU with that number.",
        "OMP_NUM_THREADS": "--cpu-threads sets the number of threads of the kernels.",
        "MODEL": "It belongs to a wrapper around vLLM.",
    }
)

# Variables that are read by libraries, or by the translation of arguments.
READ_ELSEWHERE: Mapping[str, str] = MappingProxyType(
    {
        "LD_LIBRARY_PATH": "Read by the system's loader.",
        "CUDA_VISIBLE_DEVICES": "Read by the driver; `--data-parallel-size` distributes the GPUs that it shows.",
        "S3_ACCESS_KEY_ID": "For --load-format tensorizer and runai_streamer.",
        "S3_SECRET_ACCESS_KEY": "For --load-format tensorizer and runai_streamer.",
        "S3_ENDPOINT_URL": "For --load-format tensorizer and runai_streamer.",
        "HF_TOKEN": "Read by the hub's library; --hf-token takes precedence.",
        "HUGGING_FACE_HUB_TOKEN": "Read by the hub's library; --hf-token takes precedence.",
        "HF_HUB_OFFLINE": "Read by the hub's library.",
        "VLLM_NO_DEPRECATION_WARNING": "Suppresses the notices about deprecated flags.",
    }
)


def _bytes(unit: int) -> Callable[[str], str]:
    def convert(text: str) -> str:
        try:
            return str(int(float(text) * unit))
        except ValueError:
            return text  # the option's parser reports the error

    return convert


# Variable → conversion of its value to the option's form, if that differs.
CONVERSIONS: Mapping[str, Callable[[str], str]] = MappingProxyType(
    {
        "VLLM_LOGGING_LEVEL": str.lower,
        "VLLM_CPU_KVCACHE_SPACE": _bytes(2**30),
        "VLLM_XGRAMMAR_CACHE_MB": _bytes(2**20),
        "VLLM_TORCH_PROFILER_DIR": lambda text: json.dumps({"torch_profiler_dir": text}),
        "VLLM_USE_DUMMY_WEIGHTS": lambda text: "" if text in ("0", "false", "False") else "dummy",
    }
)


def why_without_effect(name: str) -> str:
    """The reason why a variable of vLLM has no effect; empty if it has one, or is not known."""
    beginnings = (family for family in _FAMILIES if name.startswith(family[:-1]))
    found = WITHOUT_EFFECT.get(name) or WITHOUT_EFFECT.get(next(beginnings, ""))
    return found or ""


def value_of(name: str, environment: Mapping[str, str]) -> str:
    """The value of a variable for the option that it stands for; empty if not set."""
    value = environment.get(name, "")
    return CONVERSIONS[name](value) if value and name in CONVERSIONS else value
