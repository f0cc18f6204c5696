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
_NODES = "With --distributed-executor-backend ray, several machines compute one model; leave it out."
_TOKENIZERS = "The tokenizer is a separate service, with one thread per core; --tokenizer-address adds replicas."

_SERVER: Mapping[str, Answer] = {
    "disable-log-stats": no_effect("Quire logs no periodic statistics; they are in /metrics.", switch=True),
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
    "performance-mode": no_effect("There is one mode, for few requests and for many."),
    "enable-flashinfer-autotune": no_effect("Quire's kernels need no tuning while a worker starts.", switch=True),
    "attention-config": refused("Choose a backend with --attention-backend; leave it out.", taken=("{}",)),
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
    "moe-backend": no_effect("Experts have one kernel for each kind of weights.", taken=("auto",)),
    "data-parallel-external-lb": no_effect("It follows from --data-parallel-rank.", switch=True),
    "disable-nccl-for-dp-synchronization": no_effect("Ranks synchronize as their devices allow.", switch=True),
    "nnodes": refused(_NODES, taken=("1",)),
    "node-rank": refused(_NODES, taken=("0",)),
    "master-addr": refused(_NODES, taken=("127.0.0.1",)),
    "master-port": refused(_NODES),
    "num-redundant-experts": acts_as("--eplb-config.num_redundant_experts"),
    "eplb-window-size": acts_as("--eplb-config.window_size"),
    "eplb-step-interval": acts_as("--eplb-config.step_interval"),
    "eplb-log-balancedness": acts_as("--eplb-config.log_balancedness", fixed="true", switch=True),
    "worker-use-ray": acts_as("--distributed-executor-backend", fixed="ray", switch=True),
}  # fmt: skip

_CACHE_AND_SCHEDULER: Mapping[str, Answer] = {
    "prefix-caching-hash-algo": no_effect(
        "Blocks are always hashed with SHA-256 over their tokens, the same in every process; nothing is pickled."
    ),
    "use-v2-block-manager": no_effect("It has no effect in vLLM either; there is only one block manager.", switch=True),
    "quantization-param-path": refused(
        "Scales of keys and values come from the checkpoint or from --calculate-kv-scales; leave it out."
    ),
    "kv-offloading-size": acts_as("--swap-space", "It counts per rank instead of for all ranks together."),
    "kv-offloading-backend": refused("Blocks are offloaded to host memory by Quire itself.", taken=("native",)),
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
    "default-mm-loras": refused(
        "Serve the adapter with --lora-modules NAME=PATH, and name it as the model of requests with images, videos or "
        "audio."
    ),
}

_ADAPTERS_OF_ALL_KINDS: Mapping[str, Answer] = {
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

ANSWERS: Mapping[str, Answer] = MappingProxyType(
    {
        **_SERVER, **_MODEL, **_PARALLEL, **_CACHE_AND_SCHEDULER, **_MULTIMODAL, **_ADAPTERS_OF_ALL_KINDS,
        **_SPECULATION,
    }
)  # fmt: skip

# Short names of vLLM's flags → long names.
SHORT_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "-tp": "tensor-parallel-size", "-pp": "pipeline-parallel-size", "-dcp": "decode-context-parallel-size",
        "-dp": "data-parallel-size", "-dpn": "data-parallel-rank", "-dpr": "data-parallel-start-rank",
        "-dpl": "data-parallel-size-local", "-dpa": "data-parallel-address", "-dpp": "data-parallel-rpc-port",
        "-dpb": "data-parallel-backend", "-asc": "api-server-count", "-spec-draft-tp": "spec-draft-tp",
        "-q": "quantization", "-h": "help",
    }
)  # fmt: skip
