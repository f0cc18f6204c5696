"""Fields and structs shared by chat completions and completions."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from gateway.protocol.constraints import ConstraintFields
from gateway.protocol.fields import Flag, RequestFields, Whole
from quire.sampling import RepetitionDetection, Xargs


class StreamOptions(RequestFields):
    """Usage reporting in streams."""

    include_usage: Flag = False
    continuous_usage_stats: Flag = False


class KvTransferParams(RequestFields, kw_only=True):
    """What servers tell each other of a prompt's KV blocks, by way of a proxy: vLLM's fields and two more."""

    do_remote_decode: Flag = False  # another server continues the request, and pulls the blocks from this one
    do_remote_prefill: Flag = False  # another server has computed the prompt, and this one pulls its blocks
    remote_engine_id: str | None = None
    remote_block_ids: Any = None  # always null: blocks are found by their hashes
    remote_host: str | None = None
    remote_port: int | None = None
    expires: int | None = None  # Unix time in seconds
    signature: str | None = None  # of the server that names the host and port


class LogitsProcessorFields(msgspec.Struct):
    """A logits processor and its constructor arguments."""

    qualname: str
    args: list[Any] | None = None
    kwargs: dict[str, Any] | None = None


class SamplingFields(ConstraintFields, kw_only=True):
    """Parameters of sampling and output; null means the same as absent."""

    n: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: Flag = False
    ignore_eos: Flag = False
    logit_bias: dict[str, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    logprob_token_ids: list[int] | None = None
    thinking_token_budget: int | None = None
    num_speculative_tokens: int | None = None  # an extension of Quire
    watermarking: bool | None = None
    vllm_xargs: Xargs | None = None
    logits_processors: list[str | LogitsProcessorFields] | None = None
    repetition_detection: RepetitionDetection | None = None
    prompt_logprobs: int | None = None
    routed_experts_prompt_start: int | None = None
    skip_special_tokens: Flag = True
    spaces_between_special_tokens: bool | None = None
    stream_interval: int | None = None


class GenerationFields(SamplingFields, kw_only=True):
    """Fields of all generating endpoints; null means the same as absent."""

    model: str | None = None
    use_beam_search: bool | None = None
    best_of: int | None = None
    length_penalty: float | None = None
    early_stopping: bool | Literal["never"] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: Literal["left", "right"] | None = None  # default: left
    echo: Flag = False
    suffix: str | None = None
    priority: Whole = 0
    cache_salt: str | None = None
    request_id: str | None = None
    return_token_ids: bool | None = None
    return_prompt_text: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    return_token_offsets: bool | None = None  # only when rendering
    return_weight_versions: bool | None = None
    session_id: str | None = None
    prompt_cache_key: str | None = None
    user: str | None = None
    # For conversations with images, videos and audio.
    mm_processor_kwargs: dict[str, Any] | None = None
    media_io_kwargs: dict[str, Any] | None = None

    kv_transfer_params: KvTransferParams | None = None

    # Not supported: refused unless neutral, see gateway/requests/refused.py.
    prompt_embeds: Any = None
    mm_payload: Any = None
    ec_transfer_params: Any = None
    include_reasoning: bool | None = None

    @property
    def num_sequences(self) -> int:
        """Number of sequences per prompt; a beam search may follow more than it returns."""
        return max(self.n or 1, self.best_of or 1)


class ConversationFields(GenerationFields, kw_only=True):
    """Fields of the endpoints that continue conversations: chats, and the two APIs that are converted to chats."""

    add_special_tokens: Flag = False
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, str]] | None = None

    # Not supported.
    functions: Any = None
    function_call: Any = None
    modalities: Any = None
    audio: Any = None


class PromptTokensDetails(msgspec.Struct):
    """Breakdown of the prompt tokens."""

    cached_tokens: int


class CompletionTokensDetails(msgspec.Struct):
    """Breakdown of the completion tokens."""

    reasoning_tokens: int


class Usage(msgspec.Struct):
    """Token counts of a request."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int
    prompt_tokens_details: PromptTokensDetails | UnsetType = UNSET
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET


class PromptLogprob(msgspec.Struct):
    """Log-probability of one token at one position of the prompt."""

    logprob: float
    rank: int | None
    decoded_token: str


class WeightSpan(msgspec.Struct, frozen=True):
    """A run of a choice's tokens that the same weights computed: from `start` to before `end`, counted from 0."""

    version: str
    start: int
    end: int


PromptLogprobs = list[dict[str, PromptLogprob] | None]
