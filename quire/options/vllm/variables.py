"""The environment variables in vLLM's documentation, and what each does here."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from types import MappingProxyType

_BUILD = "It is for building vLLM."
_HARDWARE = "It is for hardware that Quire does not support."
_THERE_ALONE = "It is an internal switch of vLLM with no counterpart in Quire."
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

# Name → why it has no effect, reported at start. Variables with an effect are listed at their options, see
# `option(variables=…)`.
WITHOUT_EFFECT: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(
            ("VLLM_TARGET_DEVICE", "VLLM_USE_PRECOMPILED", "VLLM_TEST_USE_PRECOMPILED_NIGHTLY_WHEEL"), _BUILD
        ),
        **dict.fromkeys(
            ("VLLM_OPENVINO_DEVICE", "VLLM_OPENVINO_KVCACHE_SPACE", "VLLM_OPENVINO_CPU_KV_CACHE_PRECISION",
             "VLLM_OPENVINO_ENABLE_QUANTIZED_WEIGHTS", "VLLM_XLA_CACHE_PATH", "VLLM_XLA_CHECK_RECOMPILATION",
             "VLLM_ROCM_FP8_PADDING", "VLLM_USE_HPU_CONTIGUOUS_CACHE_FETCH", "VLLM_TPU_DISABLE_TOPK_TOPP_OPTIMIZATION"),
            _HARDWARE,
        ),
        **dict.fromkeys(
            ("VLLM_RINGBUFFER_WARNING_INTERVAL", "VLLM_TEST_DYNAMO_FULLGRAPH_CAPTURE", "VLLM_USE_V1",
             "VLLM_ENABLE_V1_MULTIPROCESSING", "VLLM_CI_USE_S3", "VLLM_TEST_FORCE_MIXED_CHUNKED_PREFILL",
             "VLLM_V1_OUTPUT_PROC_CHUNK_SIZE", "VLLM_TRACE_FUNCTION", "VLLM_CPU_MOE_PREPACK", "VLLM_CUDART_SO_PATH",
             "VLLM_INSTANCE_ID", "VLLM_LOGITS_PROCESSOR_THREADS"),
            _THERE_ALONE,
        ),
        **dict.fromkeys(
            ("VLLM_USE_RAY_SPMD_WORKER", "VLLM_USE_RAY_COMPILED_DAG", "VLLM_USE_RAY_COMPILED_DAG_NCCL_CHANNEL",
             "VLLM_USE_RAY_COMPILED_DAG_OVERLAP_COMM"), _RAY
        ),
        **dict.fromkeys(("VLLM_RPC_BASE_PATH", "VLLM_RPC_TIMEOUT"), _INTERNAL),
        **dict.fromkeys(
            ("VLLM_USE_TRITON_FLASH_ATTN", "VLLM_FLASH_ATTN_VERSION", "VLLM_ATTENTION_BACKEND",
             "VLLM_USE_FLASHINFER_SAMPLER", "VLLM_FLASHINFER_FORCE_TENSOR_CORES", "VLLM_MLA_DISABLE",
             "VLLM_FUSED_MOE_CHUNK_SIZE", "VLLM_ENABLE_MOE_ALIGN_BLOCK_SIZE_TRITON", "VLLM_USE_FLASHINFER_MOE_FP8",
             "VLLM_USE_FLASHINFER_MOE_FP16", "VLLM_FLASHINFER_MOE_BACKEND"), _KERNELS,
        ),
        **dict.fromkeys(
            ("VLLM_USE_TRITON_AWQ", "VLLM_DISABLED_KERNELS", "VLLM_MARLIN_USE_ATOMIC_ADD", "VLLM_USE_DEEP_GEMM",
             "VLLM_TEST_FORCE_FP8_MARLIN"), _QUANTIZED,
        ),
        **dict.fromkeys(
            ("VLLM_USAGE_STATS_SERVER", "VLLM_NO_USAGE_STATS", "VLLM_DO_NOT_TRACK", "VLLM_USAGE_SOURCE"), _REPORTS
        ),
        **dict.fromkeys(("Q_SCALE_CONSTANT", "K_SCALE_CONSTANT", "V_SCALE_CONSTANT"), _SCALES),
        **dict.fromkeys(("VLLM_CONFIGURE_LOGGING", "VLLM_LOGGING_PREFIX"), _LOGGING),
        "VLLM_ASSETS_CACHE": _MEDIA,
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


def value_of(name: str, environment: Mapping[str, str]) -> str:
    """The value of a variable for the option that it stands for; empty if not set."""
    value = environment.get(name, "")
    return CONVERSIONS[name](value) if value and name in CONVERSIONS else value
