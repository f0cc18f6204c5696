"""The flags of vLLM that are not options of Quire, with their answers. An option of the same name takes precedence."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from quire.options.vllm.answer import Answer, acts_as, no_effect, refused

_NO_CODE = "Quire never runs code from a repository"
_MEDIA_CACHES = (
    "Each tokenizer service keeps prepared images, videos and audio in its own memory: --mm-processor-cache-gb."
)
_WHOLE_ENCODERS = "Each rank has the whole image encoder, and encodes every image and video itself."
_ADAPTERS = (
    "Prompt adapters no longer exist in vLLM either. Serve adapters with --enable-lora and --lora-modules NAME=PATH."
)
_TOKENIZERS = "The tokenizer is a separate service, with one thread per core; --tokenizer-address adds replicas."
_RECOVERY = "The router always moves the requests of a lost worker to others, and the supervisor restarts it."
_SUPERVISOR = "It belongs to --data-parallel-multi-port-external-lb, which Quire does not implement."
_COHERE = "It is for /cohere/v2/chat, which works for all models alike, with --reasoning-parser and --tool-call-parser."
_FINGERPRINTS = (
    "In answers, system_fingerprint is always a hash of everything that decides which tokens a model generates."
)
_KERNELS = "Each operation has one kernel for each kind of device and weights."
_RECURRENT_KERNELS = "Recurrent layers have one kernel for each kind of device."
_ROUNDING = "States of recurrent layers are rounded to the nearest value; by default they are float32."
_OFFLOAD = "Use --cpu-offload-gb: it keeps whole layers in host memory, and copies each while the one before computes."
_WHOLE_LAYERS = "Use --cpu-offload-gb or --offload-group-size, which offload whole layers; leave it out."
_ENCODER_CACHE = "Use ec_buffer_size of --ec-transfer-config, which sets how much an encoder worker keeps."
_ENCODER_KERNELS = "Encoders use the same data type and kernels as the rest of the model."
_ENCODER_SCALES = "Encoders do not compute in FP8; leave it out."
_PREPARED = "The tokenizer service prepares images, videos and audio on CPUs, and sends them over its own connections."
_READ_AHEAD = "The operating system reads weight files ahead while the model loads."
_NO_SUCH_METRICS = "Quire does not measure this; docs/architecture.md lists the metrics."
_NO_COMPILER = "Quire does not compile while it serves."

_SERVER: Mapping[str, Answer] = {
    "disable-log-stats": acts_as("--log-stats-interval-seconds", fixed="0", switch=True),
    "aggregate-engine-logging": no_effect("Each engine logs its own statistics; /metrics has the sums.", switch=True),
    "fail-on-environ-validation": no_effect("Unknown variables are reported when a command starts.", switch=True),
    "tokens-only": refused(
        "Use --skip-tokenizer-init and --enable-scale-out: there is then no text, and /inference/v1/generate takes and "
        "returns token ids."
    ),
    "enable-per-request-metrics": no_effect(
        "Answers carry no times; with --otlp-traces-endpoint, each request's trace has them.", switch=True
    ),
    "fingerprint-mode": no_effect(_FINGERPRINTS, taken=("full", "hash")),
    "fingerprint-value": no_effect(_FINGERPRINTS),
    "enable-flash-late-interaction": no_effect(
        "Scores of late interaction are always computed by the worker.", switch=True
    ),
    "enable-offline-docs": no_effect("The page /docs needs nothing from the Internet.", switch=True),
    "cohere-is-reasoning-model": no_effect(_COHERE, switch=True),
    "cohere-format": no_effect(_COHERE),
    "disable-log-requests": no_effect("Requests are logged only with --enable-log-requests.", switch=True),
    "disable-frontend-multiprocessing": refused(
        "By design, gateway, tokenizer, router and engines are separate processes, so that none takes another down "
        "with it. Leave it out."
    ),
    "enable-server-load-tracking": no_effect("/load always counts requests.", switch=True),
    "show-hidden-metrics-for-version": no_effect("Deprecated metrics are always shown."),
    "tool-server": refused("Quire does not run tools: clients run their own. Leave it out."),
    "max-concurrency": acts_as("--max-inflight-requests"),
    "max-num-queued-reqs": acts_as("--max-inflight-requests"),
    "enable-log-deltas": no_effect("An output is logged once, when it is complete: --enable-log-outputs.", switch=True),
    "tool-strict-level": refused("Use --strict-tool-calls, which makes all calls fit their schemas.", taken=("auto",)),
    "shutdown-timeout": acts_as("--drain-timeout-seconds"),
}

_MODEL: Mapping[str, Answer] = {
    "renderer-num-workers": no_effect(_TOKENIZERS, taken=("1",)),
    "diffusion-config": refused("Quire generates text token by token, and has no diffusion models.", taken=("{}",)),
    "ec-manager-config": refused(_ENCODER_CACHE),
    "afd-config": refused("Attention and experts of a layer are computed by the same ranks; leave it out."),
    "kernel-config": no_effect(_KERNELS, taken=("{}",)),
    "linear-backend": no_effect(_KERNELS, taken=("auto",)),
    "ir-op-priority": no_effect(_KERNELS, taken=("{}",)),
    "enable-bf16x3-router-gemm": no_effect(_KERNELS, switch=True),
    "gdn-prefill-backend": no_effect(_RECURRENT_KERNELS),
    "kda-prefill-backend": no_effect(_RECURRENT_KERNELS, taken=("auto",)),
    "mamba-backend": no_effect(_RECURRENT_KERNELS),
    "mamba-ssu-algorithm": no_effect(_RECURRENT_KERNELS),
    "quantization-config": acts_as(
        "--quantization",
        "The schemes fp8_per_tensor and fp8_per_block are fp8, for linear layers and experts alike, and "
        "int8_per_channel_weight_only is experts_int8; others, ignore, and different schemes for both are refused.",
    ),
    "allow-deprecated-quantization": no_effect("No method is deprecated.", switch=True),
    "model-class-overrides": refused(
        "The family of a model follows from its config.json; --hf-overrides can change its architectures.",
        taken=("{}",),
    ),
    "use-fp64-gumbel": no_effect("Sampling has one precision.", switch=True),
    "enable-trace-replay": refused("Quire does not replay recorded traces; leave it out."),
    "enable-cumem-allocator": no_effect("Memory can be released with --enable-sleep-mode.", switch=True),
    "enable-nccl-comm-suspend": no_effect("An engine that sleeps keeps its connections.", switch=True),
    "safetensors-prefetch-num-threads": no_effect(_READ_AHEAD),
    "safetensors-prefetch-block-size": no_effect(_READ_AHEAD),
    "performance-mode": no_effect("There is one mode, for few requests and for many."),
    "enable-flashinfer-autotune": no_effect("Quire's kernels need no tuning while a worker starts.", switch=True),
    "attention-config": acts_as(
        "--attention-backend",
        "That is backend; the other keys, which choose among vLLM's kernels, are refused unless they say what is so "
        "anyway.",
    ),
    "optimization-level": no_effect("Kernels are compiled ahead or when a worker starts; there are no levels."),
    "task": refused(
        "It no longer exists in vLLM either. Instead of embed, embedding, classify, score and reward, use --runner "
        "pooling, with --convert embed, classify or reward if the architecture leaves it open; instead of generate, "
        "use --runner generate; instead of transcription, leave it out and use /v1/audio/transcriptions: the task "
        "follows from the model.",
        taken=("auto", "generate"),
    ),
    "override-pooler-config": acts_as("--pooler-config"),
    "io-processor-plugin": refused(
        "Such plugins are written for vLLM's classes, and turn data that no model in Quire accepts into prompts. "
        "Prepare prompts in front of the server instead: it accepts token ids and, with --enable-prompt-embeds, "
        "embeddings."
    ),
    "trust-remote-code": refused(
        f"{_NO_CODE}: whoever can write to it could do anything on this machine. The model families of Quire and of "
        "the Transformers library need no such code; leave it out."
    ),
    "code-revision": refused(f"{_NO_CODE}, regardless of its revision; leave it out."),
    "override-attention-dtype": refused("Attention uses the same data type as the rest of the model, which --dtype "
    "sets."),
    "disable-cascade-attn": no_effect("A shared prefix does not change the numbers of any sequence.", switch=True),
    "disable-async-output-proc": acts_as("--no-async-scheduling", fixed="", switch=True),
    "max-seq-len-to-capture": no_effect(
        "Steps are recorded for sequences of any length; --cuda-graph-sizes sets the batch sizes."
    ),
    "override-neuron-config": refused(
        "Quire runs on CPUs and NVIDIA GPUs, not on Neuron; leave it out.", taken=("{}",)
    ),
    "additional-config": refused("It is for platforms that Quire does not support; leave it out.", taken=("{}",)),
    "compilation-config": acts_as(
        "--cuda-graph-sizes",
        "cudagraph_capture_sizes and max_capture_size set which batches are recorded; use_cudagraph false or "
        "cudagraph_mode NONE is --enforce-eager; the other keys, including the level, have no effect.",
    ),
    "tokenizer-pool-size": no_effect(_TOKENIZERS, taken=("0",)),
    "tokenizer-pool-type": no_effect(_TOKENIZERS),
    "tokenizer-pool-extra-config": no_effect(_TOKENIZERS),
    "qlora-adapter-name-or-path": no_effect(
        "It has no effect in vLLM either. Serve an adapter with --enable-lora and --lora-modules NAME=PATH, which work "
        "on quantized weights too."
    ),
}  # fmt: skip

_PARALLEL: Mapping[str, Answer] = {
    "prefill-context-parallel-size": refused(
        "Prompts are divided by --tensor-parallel-size and --pipeline-parallel-size; workers of their own may compute "
        "them with --kv-transfer-config.",
        taken=("1",),
    ),
    "dcp-comm-backend": no_effect("Context ranks have one way to combine their results."),
    "dcp-q-replicate": no_effect("Context ranks have one way to combine their results.", switch=True),
    "dcp-kv-cache-interleave-size": no_effect("Context ranks take single positions in turn.", taken=("1",)),
    "cp-kv-cache-interleave-size": no_effect("Context ranks take single positions in turn.", taken=("1",)),
    "enable-elastic-ep": no_effect(
        "POST /scale_elastic_ep of --admin-port always changes the number of engines.", switch=True
    ),
    "enable-ep-weight-filter": no_effect("A rank reads only the experts that it computes.", switch=True),
    "enable-batch-sharded-sampling": no_effect("It does not change what is sampled.", switch=True),
    "ubatch-size": no_effect("Steps run in two halves with --enable-dbo.", taken=("0", "2")),
    "dp-sync-interval": no_effect("Ranks synchronize as their devices allow."),
    "enable-fault-tolerance": no_effect(_RECOVERY, switch=True),
    "fault-tolerance-config": no_effect(_RECOVERY),
    "distributed-timeout-seconds": no_effect("A step may take --step-timeout-seconds."),
    "cpu-distributed-timeout-seconds": no_effect("A step may take --step-timeout-seconds."),
    "numa-bind": no_effect(
        "CPU ranks are bound to their own nodes by default, GPU ranks to those of --numa-bind-nodes.", switch=True
    ),
    "data-parallel-multi-port-external-lb": refused(
        "Start one stack for each rank, with --data-parallel-rank and a --port of its own, behind your load balancer."
    ),
    "data-parallel-supervisor-port": no_effect(_SUPERVISOR),
    "dp-supervisor-probe-interval-s": no_effect(_SUPERVISOR),
    "dp-supervisor-probe-timeout-s": no_effect(_SUPERVISOR),
    "dp-supervisor-probe-failure-threshold": no_effect(_SUPERVISOR),
    "moe-backend": no_effect("Experts have one kernel for each kind of weights.", taken=("auto",)),
    "data-parallel-external-lb": no_effect("It follows from --data-parallel-rank.", switch=True),
    "disable-nccl-for-dp-synchronization": no_effect("Ranks synchronize as their devices allow.", switch=True),
    "num-redundant-experts": acts_as("--eplb-config.num_redundant_experts"),
    "eplb-window-size": acts_as("--eplb-config.window_size"),
    "eplb-step-interval": acts_as("--eplb-config.step_interval"),
    "eplb-log-balancedness": acts_as("--eplb-config.log_balancedness", fixed="true", switch=True),
    "worker-use-ray": acts_as("--distributed-executor-backend", fixed="ray", switch=True),
}  # fmt: skip

_CACHE_AND_SCHEDULER: Mapping[str, Answer] = {
    "kv-sharing-fast-prefill": no_effect(
        "Layers that attend to another layer's keys and values always compute only the rows of a prompt that are "
        "sampled from.",
        switch=True,
    ),
    "prefix-cache-retention-interval": no_effect("Blocks are kept until their memory is needed."),
    "prefix-match-unit": no_effect("Prompts share whole blocks, of --block-size tokens."),
    "use-replayssm": no_effect(_RECURRENT_KERNELS, switch=True),
    "replayssm-buffer-len": no_effect(_RECURRENT_KERNELS),
    "enable-mamba-cache-stochastic-rounding": no_effect(_ROUNDING, switch=True),
    "mamba-cache-philox-rounds": no_effect(_ROUNDING),
    "offload-backend": no_effect(_OFFLOAD, taken=("auto", "prefetch")),
    "offload-prefetch-step": refused("A layer is copied while the one before computes; leave it at 1.", taken=("1",)),
    "offload-params": refused(_WHOLE_LAYERS),
    "cpu-offload-params": refused(_WHOLE_LAYERS),
    "max-num-scheduled-tokens": acts_as("--max-num-batched-tokens"),
    "max-num-queued-tokens": acts_as("--max-queued-tokens"),
    "scheduler-reserve-full-isl": no_effect("A sequence that runs out of blocks is preempted.", switch=True),
    "watermark": no_effect("A sequence that runs out of blocks is preempted.", taken=("0", "0.0")),
    "prefill-schedule-interval": no_effect("Every step may compute prompts.", taken=("1",)),
    "prefix-caching-hash-algo": no_effect(
        "Blocks are always hashed with SHA-256 over their tokens, the same in every process; nothing is pickled."
    ),
    "use-v2-block-manager": no_effect("It has no effect in vLLM either; there is only one block manager.", switch=True),
    "quantization-param-path": refused(
        "Scales of keys and values come from the checkpoint or from --calculate-kv-scales; leave it out."
    ),
    "kv-offloading-backend": refused(
        "Quire offloads blocks to host memory by itself, which is what native means, and has no LMCache; leave it out, "
        "or set native. --kv-transfer-config can keep them in files, or share them with other workers.",
        taken=("native",),
    ),
    "cudagraph-capture-sizes": acts_as("--cuda-graph-sizes"),
    "max-cudagraph-capture-size": acts_as("--cuda-graph-sizes"),
    "disable-hybrid-kv-cache-manager": no_effect("One manager handles the blocks of all kinds of layers.", switch=True),
    "scheduler-cls": refused(
        "Quire does not load scheduler classes; choose a policy with --scheduling-policy.",
        taken=("vllm.core.scheduler.Scheduler",),
    ),
    "multi-step-stream-outputs": no_effect("Every step's tokens are sent at once.", switch=True),
    "num-scheduler-steps": no_effect("--async-scheduling replaces it: the next step is planned while one is running."),
    "preemption-mode": acts_as(
        "--swap-space", "Preempted requests are recomputed, or copied back if there is swap space.", fixed="4",
        taken=("recompute",),
    ),
    "scheduler-delay-factor": no_effect(
        "Prompts are never delayed: --enable-chunked-prefill computes them together with decoding sequences."
    ),
}  # fmt: skip

_MULTIMODAL: Mapping[str, Answer] = {
    "mm-encoder-attn-backend": no_effect(_ENCODER_KERNELS),
    "mm-encoder-attn-dtype": no_effect(_ENCODER_KERNELS),
    "mm-encoder-fp8-scale-path": refused(_ENCODER_SCALES),
    "mm-encoder-fp8-scale-save-path": refused(_ENCODER_SCALES),
    "mm-encoder-fp8-scale-save-margin": refused(_ENCODER_SCALES),
    "mm-hasher-algorithm": no_effect("Images, videos and audio are hashed with SHA-256.", taken=("sha256",)),
    "mm-tensor-ipc": no_effect(_PREPARED),
    "mm-ipc-gpu-memory-gb": no_effect(_PREPARED, taken=("0",)),
    "mm-processor-device": no_effect(_PREPARED, taken=("auto", "cpu")),
    "mm-device-do-normalize": no_effect(_PREPARED, switch=True),
    "video-pruning-method": no_effect("Tokens are pruned as in EVS: --video-pruning-rate.", taken=("evs",)),
    "disable-mm-preprocessor-cache": acts_as("--mm-processor-cache-gb", fixed="0", switch=True),
    "language-model-only": acts_as("--limit-mm-per-prompt", fixed="image=0,video=0,audio=0", switch=True),
    "mm-processor-cache-type": no_effect(_MEDIA_CACHES),
    "mm-shm-cache-max-object-size-mb": no_effect(_MEDIA_CACHES),
    "mm-encoder-tp-mode": no_effect(_WHOLE_ENCODERS),
    "enable-multimodal-encoder-data-parallel": no_effect(_WHOLE_ENCODERS, switch=True),
    "skip-mm-profiling": no_effect(
        "Encoding images, videos and audio takes memory that --gpu-memory-utilization leaves free; it is not measured "
        "at the start.",
        switch=True,
    ),
}

_ADAPTERS_OF_ALL_KINDS: Mapping[str, Answer] = {
    "enable-tower-connector-lora": refused(
        "Adapters apply to the language model, not to encoders. Leave it out, and merge such an adapter into its base "
        "model."
    ),
    "enable-moe-shared-loras": refused("An adapter of experts needs weights for each expert; leave it out."),
    "enable-mixed-moe-lora-format": no_effect("Each adapter is read in its own format.", switch=True),
    "specialize-active-lora": no_effect("Each step computes only the adapters that its rows use.", switch=True),
    "enable-lora-bias": refused(
        "It no longer exists in vLLM either: biases are not a low-rank part of a model. Leave it out, and merge an "
        "adapter with biases into its base model."
    ),
    "lora-extra-vocab-size": refused(
        "It no longer exists in vLLM either: an adapter has the vocabulary of its base model. Leave it out, and merge "
        "an adapter that adds tokens into its base model."
    ),
    "long-lora-scaling-factors": refused(
        "It has no replacement: positions are scaled the same for all adapters. Run one server per scaling factor, "
        "each with --rope-scaling."
    ),
    "prompt-adapters": refused(_ADAPTERS),
    "enable-prompt-adapter": no_effect(_ADAPTERS, switch=True),
    "max-prompt-adapters": no_effect(_ADAPTERS),
    "max-prompt-adapter-token": no_effect(_ADAPTERS),
}

_SPECULATION: Mapping[str, Answer] = {
    **{
        flag: acts_as(f"--speculative-config.{key}")
        for flag, key in {
            "speculative-model": "model",
            "num-speculative-tokens": "num_speculative_tokens",
            "spec-method": "method",
            "spec-model": "model",
            "spec-tokens": "num_speculative_tokens",
            "speculative-model-quantization": "quantization",
            "speculative-draft-tensor-parallel-size": "draft_tensor_parallel_size",
            "spec-draft-tp": "draft_tensor_parallel_size",
            "speculative-max-model-len": "max_model_len",
            "speculative-disable-by-batch-size": "disable_by_batch_size",
            "ngram-prompt-lookup-max": "prompt_lookup_max",
            "ngram-prompt-lookup-min": "prompt_lookup_min",
            "spec-decoding-acceptance-method": "acceptance_method",
            "typical-acceptance-sampler-posterior-threshold": "posterior_threshold",
            "typical-acceptance-sampler-posterior-alpha": "posterior_alpha",
            "disable-logprobs-during-spec-decoding": "disable_logprobs",
        }.items()
    },
    "speculative-disable-mqa-scorer": no_effect(
        "Draft tokens are always verified in one pass, never by expanding the batch.", switch=True
    ),
}

_OBSERVABILITY: Mapping[str, Answer] = {
    "kv-cache-metrics": no_effect(_NO_SUCH_METRICS, switch=True),
    "kv-cache-metrics-sample": no_effect(_NO_SUCH_METRICS),
    "cudagraph-metrics": no_effect(_NO_SUCH_METRICS, switch=True),
    "enable-mfu-metrics": no_effect(_NO_SUCH_METRICS, switch=True),
    "per-request-spec-decode-metrics": no_effect(
        "Acceptance is measured over all requests: spec_decode_* in /metrics."
    ),
    "enable-logging-iteration-details": no_effect("Steps are measured in /metrics, and not logged.", switch=True),
    "enable-layerwise-nvtx-tracing": no_effect("POST /start_profile of --admin-port profiles by layer.", switch=True),
    "jit-monitor-mode": no_effect(_NO_COMPILER),
    "jit-monitor-verbose": no_effect(_NO_COMPILER, switch=True),
}

ANSWERS: Mapping[str, Answer] = MappingProxyType(
    {
        **_SERVER, **_MODEL, **_PARALLEL, **_CACHE_AND_SCHEDULER, **_MULTIMODAL, **_ADAPTERS_OF_ALL_KINDS,
        **_SPECULATION, **_OBSERVABILITY,
    }
)  # fmt: skip

# Short names of vLLM's flags → long names.
SHORT_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "-tp": "tensor-parallel-size", "-pp": "pipeline-parallel-size", "-dcp": "decode-context-parallel-size",
        "-dp": "data-parallel-size", "-dpn": "data-parallel-rank", "-dpr": "data-parallel-start-rank",
        "-dpl": "data-parallel-size-local", "-dpa": "data-parallel-address", "-dpp": "data-parallel-rpc-port",
        "-dpb": "data-parallel-backend", "-asc": "api-server-count", "-spec-draft-tp": "spec-draft-tp",
        "-dph": "data-parallel-hybrid-lb", "-dpe": "data-parallel-external-lb",
        "-dpm": "data-parallel-multi-port-external-lb", "-pcp": "prefill-context-parallel-size",
        "-ep": "enable-expert-parallel", "-n": "nnodes", "-r": "node-rank",
        "-ac": "attention-config", "-sc": "speculative-config", "-dc": "diffusion-config",
        "-q": "quantization", "-h": "help",
    }
)  # fmt: skip
