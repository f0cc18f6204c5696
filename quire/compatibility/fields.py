"""Request fields of vLLM's `/v1/chat/completions` and `/v1/completions`, and the tests that use the supported ones."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

# Test → the fields of both endpoints that it uses.
_TESTS = {
    "tests/gateway/answers/test_reasoning.py": "include_reasoning",
    "tests/gateway/endpoints/test_answers.py": (
        "model messages prompt frequency_penalty presence_penalty logit_bias logprobs top_logprobs max_tokens "
        "max_completion_tokens n seed stop stream_options temperature top_p top_k min_p repetition_penalty "
        "stop_token_ids include_stop_str_in_output ignore_eos min_tokens truncate_prompt_tokens truncation_side "
        "prompt_logprobs echo priority request_id return_tokens_as_token_ids return_token_ids "
        "return_prompt_text suffix "
        "add_generation_prompt documents"
    ),
    "tests/gateway/endpoints/test_constraints.py": (
        "stream response_format structured_outputs guided_regex guided_choice"
    ),
    "tests/engine_svc/sampling/test_watermark.py": "watermarking",
    "tests/gateway/endpoints/test_kv_transfer.py": "kv_transfer_params",
    "tests/gateway/endpoints/test_routed_experts.py": "routed_experts_prompt_start",
    "tests/gateway/endpoints/test_scale_out.py": "return_token_offsets",
    "tests/gateway/endpoints/test_weight_versions.py": "return_weight_versions",
    "tests/gateway/endpoints/test_tool_calls.py": "tools tool_choice parallel_tool_calls",
    "tests/gateway/requests/test_constraint.py": "guided_json guided_decoding_backend guided_whitespace_pattern",
    "tests/gateway/requests/test_thinking.py": "reasoning_effort",
    "tests/gateway/media/test_settings.py": "mm_processor_kwargs media_io_kwargs",
    "tests/gateway/requests/test_what_routers_get.py": "session_id cache_salt user",
    "tests/integration/test_demo_model.py": "chat_template_kwargs",
    "tests/integration/test_openai_sdk.py": (
        "use_beam_search length_penalty best_of skip_special_tokens guided_grammar"
    ),
    "tests/integration/test_sampling_fields.py": (
        "spaces_between_special_tokens logprob_token_ids allowed_token_ids bad_words add_special_tokens vllm_xargs "
        "repetition_detection thinking_token_budget stream_interval logits_processors"
    ),
    "tests/integration/test_token_ids_only.py": "prompt_embeds",
    "tests/tokenizer_svc/test_chat_template.py": "chat_template continue_final_message",
}
FIELDS: Mapping[str, str] = MappingProxyType(
    {field: test for test, fields in _TESTS.items() for field in fields.split()}
)
