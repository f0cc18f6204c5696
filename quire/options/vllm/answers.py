"""The flags of vLLM that are not options of Quire, with their answers. An option of the same name takes precedence."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from quire.options.vllm.answer import Answer, acts_as, no_effect, not_built, refused

_NO_CODE = "The code of a repository is never run here"
_MEDIA = "input of images, audio and video"
_NO_MEDIA = "Models are served for text alone; leave it out."
_ADAPTERS = "Prompt adapters are gone from there as well. --enable-lora and --lora-modules NAME=PATH serve adapters."
_TOKENIZERS = (
    "The tokenizer is a service of its own, with as many threads as it has cores; --tokenizer-address names replicas."
)

_SERVER: Mapping[str, Answer] = {
    "disable-log-stats": no_effect("There are no lines of statistics to turn off: /metrics has them.", switch=True),
    "disable-log-requests": no_effect("What requests say is logged with --enable-log-requests alone.", switch=True),
    "disable-frontend-multiprocessing": refused(
        "Gateway, tokenizer, router and engines are services, which are processes of their own by design: one that "
        "fails takes no other with it. Leave it out."
    ),
    "enable-server-load-tracking": no_effect("/load always counts.", switch=True),
    "show-hidden-metrics-for-version": no_effect("Deprecated metrics are always shown."),
    "tool-server": refused("Quire runs no tools: clients call theirs themselves. Leave it out."),
    "max-concurrency": acts_as("--max-inflight-requests"),
}

_MODEL: Mapping[str, Answer] = {
    "task": refused(
        "It is gone from there as well. --runner pooling has the place of embed, embedding, classify, score and "
        "reward, with --convert embed, classify or reward where the architecture leaves it open; --runner generate "
        "that of generate. Of models that transcribe speech there are none.",
        taken=("auto", "generate"),
    ),
    "override-pooler-config": acts_as("--pooler-config"),
    "io-processor-plugin": refused(
        "Such plugins are written for vLLM's classes, and make prompts of images and other data that no model here "
        "takes. Make them in front of the server: it takes token ids and, with --enable-prompt-embeds, embeddings."
    ),
    "trust-remote-code": refused(
        f"{_NO_CODE}: whoever can write there could do anything on this machine. The families of Quire and of the "
        "Transformers library need none; leave it out."
    ),
    "code-revision": refused(f"{_NO_CODE}, whatever its revision; leave it out."),
    "override-attention-dtype": refused("Attention computes in the type of the rest, which --dtype sets."),
    "disable-cascade-attn": no_effect("A prefix that sequences share changes none of their numbers.", switch=True),
    "disable-async-output-proc": acts_as("--no-async-scheduling", fixed="", switch=True),
    "max-seq-len-to-capture": no_effect(
        "Steps are recorded for sequences of any length; --cuda-graph-sizes has batches."
    ),
    "override-neuron-config": refused(
        "Quire runs on CPUs and NVIDIA's GPUs, not on Neuron; leave it out.", taken=("{}",)
    ),
    "additional-config": refused("It is for platforms that Quire does not run on; leave it out.", taken=("{}",)),
    "compilation-config": acts_as(
        "--cuda-graph-sizes",
        "cudagraph_capture_sizes and max_capture_size say which batches are recorded, and use_cudagraph false or "
        "cudagraph_mode NONE is --enforce-eager; the other keys, the level among them, have no effect.",
    ),
    "tokenizer-pool-size": no_effect(_TOKENIZERS, taken=("0",)),
    "tokenizer-pool-type": no_effect(_TOKENIZERS),
    "tokenizer-pool-extra-config": no_effect(_TOKENIZERS),
    "qlora-adapter-name-or-path": no_effect(
        "Nor has it there. --enable-lora and --lora-modules NAME=PATH serve an adapter, on quantized weights as well."
    ),
}  # fmt: skip

_PARALLEL: Mapping[str, Answer] = {
    "num-redundant-experts": acts_as("--eplb-config.num_redundant_experts"),
    "eplb-window-size": acts_as("--eplb-config.window_size"),
    "eplb-step-interval": acts_as("--eplb-config.step_interval"),
    "eplb-log-balancedness": acts_as("--eplb-config.log_balancedness", fixed="true", switch=True),
    "worker-use-ray": acts_as("--distributed-executor-backend", fixed="ray", switch=True),
}  # fmt: skip

_CACHE_AND_SCHEDULER: Mapping[str, Answer] = {
    "prefix-caching-hash-algo": no_effect(
        "Blocks are always hashed by SHA-256 over their tokens, the same in every process; nothing is pickled."
    ),
    "use-v2-block-manager": no_effect("Nor has it there; there is one manager of blocks.", switch=True),
    "quantization-param-path": refused(
        "Scales of keys and values come from the checkpoint, or from --calculate-kv-scales; leave it out."
    ),
    "kv-transfer-config": not_built("transfer of KV blocks between workers"),
    "kv-events-config": not_built(
        "a publisher of KV events as vLLM has it", "Routers get those of their workers without it."
    ),
    "disable-hybrid-kv-cache-manager": no_effect("One manager keeps the blocks of all kinds of layers.", switch=True),
    "scheduler-cls": refused(
        "Schedulers are not taken by their names; --scheduling-policy has what there is.",
        taken=("vllm.core.scheduler.Scheduler",),
    ),
    "multi-step-stream-outputs": no_effect("Every step's tokens are sent at once.", switch=True),
    "num-scheduler-steps": no_effect("--async-scheduling has its place: the next step is planned while one runs."),
    "preemption-mode": acts_as(
        "--swap-space", "What is preempted is computed again, or copied back where there is swap space.", fixed="4",
        taken=("recompute",),
    ),
    "scheduler-delay-factor": no_effect(
        "Prompts wait for nobody: --enable-chunked-prefill computes them beside what is decoded."
    ),
}  # fmt: skip

_MULTIMODAL: Mapping[str, Answer] = dict.fromkeys(
    (
        "allowed-local-media-path", "allowed-media-domains", "limit-mm-per-prompt", "media-io-kwargs",
        "mm-processor-kwargs", "mm-processor-cache-gb", "disable-mm-preprocessor-cache", "mm-processor-cache-type",
        "mm-shm-cache-max-object-size-mb", "mm-encoder-tp-mode", "enable-multimodal-encoder-data-parallel",
        "interleave-mm-strings", "skip-mm-profiling", "video-pruning-rate", "disable-chunked-mm-input",
        "default-mm-loras",
    ),
    not_built(_MEDIA, _NO_MEDIA),
)  # fmt: skip

_ADAPTERS_OF_ALL_KINDS: Mapping[str, Answer] = {
    "enable-lora-bias": refused(
        "It is gone from there as well: biases are no low-rank part of a model. Leave it out, and merge an adapter "
        "that has some into its base."
    ),
    "lora-extra-vocab-size": refused(
        "It is gone from there as well: an adapter has the vocabulary of its base. Leave it out, and merge one that "
        "adds tokens into its base."
    ),
    "long-lora-scaling-factors": refused(
        "Nothing has taken its place: positions are scaled alike for all adapters. Serve those of one factor by "
        "--rope-scaling, by a server for each factor."
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
        "Guessed tokens are always verified in one pass, and never by a batch that is expanded.", switch=True
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
