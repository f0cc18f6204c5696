"""The capabilities that vLLM's documentation lists, by kind, and the evidence that Quire has them.

The value of each name is a test that uses it, as `file::function` below tests/; or the flag (`--name`) or route (`POST
/path`) that provides it, whose own status applies; or, after `refused:` or `no effect:`, why there is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Values:
    """The values of a flag, some of which it may refuse.

    Attributes:
        test: a test that uses the values that work.
    """

    names: tuple[str, ...]
    test: str


def _values(names: str, test: str) -> Values:
    return Values(tuple(names.split()), f"tests/{test}")


# Flag → the values that vLLM documents.
VALUES: Mapping[str, Values] = MappingProxyType(
    {
        "tool-call-parser": _values(
            "deepseek_v3 deepseek_v31 gigachat3 glm4_moe glm45 glm47 granite granite-20b-fc hermes hunyuan_a13b "
            "internlm "
            "jamba kimi_k2 llama3_json llama4_json llama4_pythonic minimax minimax_m1 mistral olmo3 phi4_mini_json "
            "pythonic qwen qwen3_coder step3p5 xlam",
            "gateway/tool_parsers/test_families.py",
        ),
        "reasoning-parser": _values(
            "deepseek_r1 glm4_moe glm45 granite hunyuan_a13b mistral openai_gptoss qwen3 seed_oss step3 step3p5",
            "conformance/test_answer_parsers.py",
        ),
        "quantization": _values(
            "aqlm auto-round awq awq_marlin bitsandbytes compressed-tensors deepspeedfp experts_int8 fbgemm_fp8 "
            "fp8 gguf "
            "gptq gptq_marlin gptq_marlin_24 gptqmodel hqq int4 int8 ipex marlin modelopt neuron_quant qqq squeezellm "
            "torchao tpu_int8",
            "engine_svc/quantization/test_registry.py",
        ),
        "load-format": _values(
            "auto pt safetensors npcache dummy tensorizer runai_streamer runai_streamer_sharded fastsafetensors "
            "bitsandbytes sharded_state gguf mistral",
            "engine_svc/loader/formats/test_registry.py",
        ),
        "safetensors-load-strategy": _values("lazy eager", "engine_svc/loader/formats/test_by_packages.py"),
        "config-format": _values("auto hf mistral", "engine_svc/config_formats/test_registry.py"),
        "model-impl": _values("auto vllm transformers terratorch", "engine_svc/models/test_exactness.py"),
        "tokenizer-mode": _values("auto slow mistral custom", "quire/tokenizer/test_modes.py"),
        "dtype": _values("auto half float16 bfloat16 float float32", "engine_svc/loader/test_loader.py"),
        "kv-cache-dtype": _values("auto bfloat16 fp8 fp8_e4m3 fp8_e5m2 fp8_inc", "engine_svc/models/test_exactness.py"),
        "logprobs-mode": _values(
            "raw_logprobs processed_logprobs raw_logits processed_logits", "engine_svc/sampling/test_logprobs_modes.py"
        ),
        "distributed-executor-backend": _values("ray mp uni external_launcher", "conformance/test_executors.py"),
        "attention-backend": _values("auto FLASH_ATTN FLASHINFER XFORMERS TORCH_SDPA", "conformance/test_attention.py"),
        "device": _values("cuda rocm cpu neuron openvino tpu xpu hpu", "gpu/test_gpu.py"),
        "scheduling-policy": _values("fcfs priority", "engine_svc/scheduler/test_scheduler.py"),
        "prefix-caching-hash-algo": _values(
            "builtin sha256 sha256_cbor sha256_cbor_64bit", "quire/options/vllm/test_flags.py"
        ),
        "preemption-mode": _values("recompute swap", "engine_svc/models/test_exactness.py"),
        "runner": _values("auto generate pooling draft", "quire/options/vllm/test_flags.py"),
        "convert": _values("auto none embed classify reward", "quire/options/vllm/test_flags.py"),
        "task": _values(
            "auto generate embed embedding classify score reward draft transcription",
            "quire/options/vllm/test_flags.py",
        ),
    }
)

_NO_MEDIA = "refused: Models are served for text alone."
_OTHER_HARDWARE = "refused: Quire runs on CPUs and NVIDIA's GPUs alone."
_CUTS = "engine_svc/models/test_exactness.py"

# Kind → name → evidence.
CAPABILITIES: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "tools": {
            "parser plugins": "gateway/tool_parsers/test_registry.py::the_plugin_of_the_documentation",
            "tool server": "--tool-server",
            "automatic choice": "--enable-auto-tool-choice",
            "definitions left out where none may be called": "--exclude-tools-when-tool-choice-none",
            "calls that fit their JSON schemas": (
                "gateway/endpoints/test_tool_calls.py::a_call_that_is_asked_for_is_held_to_its_schema"
            ),
        },
        "quantization": {
            "NF4 and FP4 of bitsandbytes": "engine_svc/quantization/test_bitsandbytes.py::codes_of_four_bits",
            "8 bits of bitsandbytes": "engine_svc/quantization/test_bitsandbytes.py::bytes",
            "FP8 weights and inputs (W8A8)": "engine_svc/quantization/test_fp8.py::models",
            "FP8 weights, 16-bit inputs (W8A16)": "engine_svc/quantization/test_compressed_tensors.py::models",
            "an unquantized checkpoint, quantized as it loads": "engine_svc/quantization/test_on_load.py::models",
            "the method read from quantization_config": (
                "engine_svc/quantization/test_registry.py::names_stand_for_methods"
            ),
            "the fastest kernel chosen by itself": "engine_svc/quantization/test_gptq.py::names_that_lead_here",
            "experts": "engine_svc/quantization/test_int8.py::int8_experts",
        },
        "structured output": {
            "JSON schema": "integration/test_openai_sdk.py::parsed_into_a_model",
            "regular expression": "engine_svc/models/test_structured.py::all_that_has_finished_is_valid",
            "grammar": "integration/test_openai_sdk.py::a_grammar_is_followed",
            "xgrammar, guidance, outlines, lm-format-enforcer": "conformance/test_structured_backends.py",
            "another backend where one cannot": (
                "tokenizer_svc/test_constraint_compiler.py::another_backend_takes_what_one_cannot_express"
            ),
            "no whitespace between parts": (
                "tokenizer_svc/test_constraint_compiler.py::the_servers_switches_are_every_requests"
            ),
            "no additional properties": "gateway/requests/test_constraint.py::switches",
            "a backend chosen by the request": "gateway/requests/test_constraint.py::old_switches",
            "compiled grammars kept": "tokenizer_svc/test_constraint_compiler.py::the_same_is_compiled_once",
        },
        "speculation": {
            "draft model": "engine_svc/models/test_drafts.py::another_model_as_draft",
            "n-grams of the prompt": "engine_svc/speculative/test_ngram.py::what_followed_the_last_tokens_before",
            "layers of the model that guess ahead (MTP)": (
                "engine_svc/models/test_heads.py::guesses_are_those_of_plain_torch"
            ),
            "rejection sampler": (
                "engine_svc/sampling/test_speculative_distribution.py::outputs_have_the_distribution_of_plain_sampling"
            ),
            "typical acceptance": (
                "engine_svc/sampling/test_verification.py::typical_acceptance_takes_what_is_likely_enough"
            ),
            "scoring without batch expansion": "--speculative-disable-mqa-scorer",
            "quantized draft": "--speculative-model-quantization",
            "draft over several ranks": "engine_svc/models/test_drafts.py::two_ranks",
            "drafts up to a length": "--speculative-max-model-len",
            "none above so many requests": "--speculative-disable-by-batch-size",
            "no logprobs with drafts": "--disable-logprobs-during-spec-decoding",
            "lookahead slots": "--num-lookahead-slots",
            "metrics of acceptance": "gateway/metrics/test_metrics.py::speculation",
        },
        "parallelism": {
            "tensor": f"{_CUTS}::tensor_parallel",
            "pipeline": "--pipeline-parallel-size",
            "data": "--data-parallel-size",
            "expert": "--enable-expert-parallel",
            "balancing of experts": "--enable-eplb",
            "placement of experts": "--expert-placement-strategy",
            "redundant experts": "--num-redundant-experts",
            "context of decoding": "--decode-context-parallel-size",
            "overlap of two batches": "--enable-dbo",
            "encoders of images over data ranks": "--enable-multimodal-encoder-data-parallel",
            "balancing inside": "integration/test_data_parallel.py::both_ranks_answer_at_one_port",
            "hybrid balancing": "--data-parallel-hybrid-lb",
            "balancing outside": "--data-parallel-rank",
            "nodes without an API": "--headless",
            "several API servers": "--api-server-count",
        },
        "attention": {
            "sliding window": "engine_svc/kv_cache/test_kv_cache.py::a_sliding_window_gives_blocks_back",
            "cascade attention": "--disable-cascade-attn",
            "caches of layers with and without a window": "engine_svc/kv_cache/test_kv_cache.py::layers_are_grouped",
            "another type for attention": "--override-attention-dtype",
            "key-value caches shared by layers": "--kv-sharing-fast-prefill",
            "scales of an FP8 cache": f"{_CUTS}::scales_of_the_kv_cache_are_calculated",
            "latent attention (MLA)": f"{_CUTS}::compressed_attention_caches_one_vector_a_token",
        },
        "key-value cache": {
            "pages": f"{_CUTS}::block_sizes",
            "automatic prefix caching": f"{_CUTS}::prefix_cache_hits",
            "a route that empties it": "POST /reset_prefix_cache",
            "memory by share or by bytes": "--kv-cache-memory-bytes",
            "a number of blocks": "--num-gpu-blocks-override",
            "swap space in host memory": f"{_CUTS}::blocks_come_back_from_the_host",
            "weights in host memory": "--cpu-offload-gb",
            "blocks from one instance to another": "--kv-transfer-config",
            "events for others": "GET /kv_event_sources",
            "types of Mamba's states": "--mamba-cache-dtype",
        },
        "scheduling": {
            "continuous batching within a budget of tokens": (
                "engine_svc/scheduler/test_scheduler.py::running_first_then_waiting_within_the_budget"
            ),
            "chunked prefill": f"{_CUTS}::chunked_prefill",
            "several partial prefills": "engine_svc/scheduler/test_scheduler.py::several_long_prompts_at_once",
            "a threshold for long prompts": "--long-prefill-token-threshold",
            "asynchronous scheduling": f"{_CUTS}::overlapped_steps",
            "several steps at a time": "--num-scheduler-steps",
            "delay factor": "--scheduler-delay-factor",
            "a scheduler of one's own": "--scheduler-cls",
            "whole images": "--disable-chunked-mm-input",
            "a bound on requests under way": "--max-concurrency",
        },
        "adapters": {
            "several on one base": "engine_svc/lora/test_batches.py::each_sequence_is_what_it_is_alone",
            "loaded at the start, by NAME=PATH or JSON": "--lora-modules",
            "loaded and unloaded while serving": "POST /v1/load_lora_adapter",
            "chosen by the request's model": "integration/test_adapters.py::answers_are_those_of_merged_weights",
            "kept in host memory": "--max-cpu-loras",
            "fully sharded": "--fully-sharded-loras",
            "of a modality": "--default-mm-loras",
            "their type": "--lora-dtype",
            "on quantized weights": "engine_svc/lora/test_batches.py::quantized_base",
            "factors of LongLoRA": "--long-lora-scaling-factors",
            "metric of those in use": "gateway/endpoints/test_adapters.py::metrics_tell_which_are_in_use",
        },
        "images, audio and video": {
            "input of images": _NO_MEDIA,
            "input of video": _NO_MEDIA,
            "input of audio": _NO_MEDIA,
            "limits by modality": "--limit-mm-per-prompt",
            "settings of processors": "--mm-processor-kwargs",
            "settings of decoders": "--media-io-kwargs",
            "caches of processors": "--mm-processor-cache-gb",
            "text and images in turn": "--interleave-mm-strings",
            "no profiling of encoders": "--skip-mm-profiling",
            "pruning of video": "--video-pruning-rate",
            "encoders over tensor ranks": "--mm-encoder-tp-mode",
            "a folder of media": "--allowed-local-media-path",
            "domains of media": "--allowed-media-domains",
        },
        "positions": {
            "linear": f"{_CUTS}::rope_scalings",
            "dynamic": f"{_CUTS}::dynamic_rope_past_the_trained_length",
            "YaRN": f"{_CUTS}::compressed_attention_with_yarn",
        },
        "sampling": {
            "temperature, top-p, top-k": "engine_svc/sampling/test_sampler.py::distribution",
            "repetition penalty": "engine_svc/sampling/test_sampler.py::repetition_penalty_as_transformers",
            "logprobs, up to a cap": "integration/test_openai_sdk.py::logprobs_are_those_of_transformers",
            "logprobs of prompts": "gateway/endpoints/test_answers.py::prompt_logprobs",
            "tokens shown by their ids": "gateway/endpoints/test_answers.py::tokens_as_ids",
            "the operator's logits processors": "integration/test_sampling_fields.py::the_operators_processors",
            "the request's logits processors": "integration/test_sampling_fields.py::the_requests_processors",
            "bad words": "integration/test_sampling_fields.py::bad_words",
            "beam search": "integration/test_openai_sdk.py::beam_search_equals_transformers",
            "n choices": "integration/test_openai_sdk.py::n_choices_differ_and_repeat_with_the_seed",
            "a seed of the server": (
                "integration/test_sampling_fields.py::what_brings_no_seed_repeats_after_the_next_start"
            ),
            "defaults of the generation config": (
                "engine_svc/requests/test_generation_config.py::auto_reads_the_models_own"
            ),
            "its max_new_tokens as a limit": (
                "gateway/requests/test_output_limit.py::a_request_gets_no_more_than_the_generation_config_allows"
            ),
        },
        "pooling": {
            "its configuration": "--pooler-config",
            "embeddings": "POST /v1/embeddings",
            "classes": "POST /classify",
            "rewards and other vectors": "POST /pooling",
            "scores": "POST /score",
            "ranking": "POST /rerank",
            "processors of inputs and outputs": "--io-processor-plugin",
        },
        "engine": {
            "sleep mode": "POST /sleep",
            "prompts as embeddings": "integration/test_token_ids_only.py::embeddings_are_prompts",
            "no tokenizer": "integration/test_token_ids_only.py::token_ids_in_and_out",
            "torch.compile": (
                "refused: Decoders are not compiled by torch. A step of decoding is replayed whole, as CUDA graphs "
                "or as "
                "one call of C++ kernels; -O and --compilation-config say which batches are recorded."
            ),
            "CUDA graphs": "engine_svc/runner/test_graphs.py::tokens_are_the_same",
            "without graphs": "--enforce-eager",
            "classes of workers": "--worker-cls",
            "calls of workers' methods by name": "POST /collective_rpc",
            "plugins": "quire/test_registry.py::an_installed_package_may_bring_one",
            "profiles of a running engine": "POST /start_profile",
            "Nsight under Ray": "--ray-workers-use-nsight",
            "reports of use": "no effect: Quire sends no reports of its use to anybody.",
            "several tokenizers": "--tokenizer-pool-size",
            "code of repositories": "--trust-remote-code",
            "models of ModelScope": "quire/test_hub.py::modelscope_is_asked_by_its_package",
        },
        "server": {
            "OpenAI's own clients": "clients/test_clients.py::client",
            "TLS, client certificates": "integration/test_serve.py::behind_a_proxy_with_keys_and_client_certificates",
            "new certificates without a start": "--enable-ssl-refresh",
            "CORS": "gateway/endpoints/test_operations.py::browsers_of_allowed_origins",
            "API keys": "gateway/endpoints/test_every_route.py::without_the_key_nothing_but_probes_answers",
            "Unix socket": "gateway/test_unix_socket.py::both_gateways_answer",
            "middleware of users": "--middleware",
            "a path below a proxy's": "gateway/endpoints/test_operations.py::below_a_proxys_path_the_same_is_public",
            "request ids": "gateway/endpoints/test_operations.py::request_ids",
            "load tracking": "GET /load",
            "limits of headers": "gateway/test_connections.py::headers_that_are_too_large",
            "a configuration of logs": "quire/test_log.py::it_says_where_and_how",
            "access log": "--disable-uvicorn-access-log",
            "logs of requests": "--enable-log-requests",
            "stacks of errors in the log": "--log-error-stack",
            "templates' form of content": "--chat-template-content-format",
            "templates of requests": "tokenizer_svc/test_chat_template.py::a_template_of_the_request",
            "usage in every stream": "--enable-force-include-usage",
            "OpenTelemetry": "integration/test_serve.py::a_trace_over_all_services",
            "Prometheus": "gateway/endpoints/test_operations.py::metrics_have_vllms_names",
            "several names of a model": (
                "gateway/endpoints/test_operations.py::a_model_of_many_names_answers_by_its_first"
            ),
        },
        "command line": {
            "--help=listgroup": "quire/options/test_help.py::groups_are_listed_by_vllms_names",
            "--help=ModelConfig": "quire/options/test_help.py::a_group",
            "--help=max-num-seqs": "quire/options/test_help.py::one_flag",
            "--help=max": "quire/options/test_help.py::a_word",
            "--json-arg JSON, and one key at a time": (
                "quire/options/test_options.py::a_key_of_an_object_is_a_flag_of_its_own"
            ),
            "-O3, -O 3, -O.level=3, -O='{…}'": "quire/options/vllm/test_flags.py::other_ways_to_write_them",
            "numbers such as 1k, 1K, 25.6k": "quire/options/test_options.py::integers_with_suffixes",
            "--no-x": "quire/options/test_options.py::booleans_in_the_environment",
            "underscores, auto, several values": "quire/options/vllm/test_flags.py::other_ways_to_write_them",
            "YAML by --config": "quire/options/test_options.py::flag_beats_environment_beats_file_beats_default",
        },
        "deployment": {
            "the profiles that guides print": "integration/test_profiles.py::it_starts_or_says_why_not",
            "containers": "integration/test_compose.py::a_chat_through_the_services_of_compose",
            "a service of Kubernetes by this name": (
                "quire/options/test_environment.py::a_kubernetes_service_called_quire_does_no_harm"
            ),
            "ROCm, Neuron, OpenVINO, TPU, XPU, HPU": _OTHER_HARDWARE,
        },
    }
)
