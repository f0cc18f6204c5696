"""Converts checked OpenAI fields to a GenerationRequest."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gateway.answers.context import NO_CONTEXT, AnswerContext
from gateway.answers.parser import AnswerParser
from gateway.protocol.common import GenerationFields
from gateway.requests.beams import beams_of
from gateway.requests.caller import Caller
from gateway.requests.generation_request import (
    DetokenizeOptions,
    GenerationRequest,
    TokenizedPrompt,
    most_output_tokens,
)
from gateway.requests.processors import encoded_xargs, processor_calls
from gateway.requests.served_model import ServedModel
from gateway.requests.thinking import Thinking
from gateway.requests.validate import check_truncation, stop_strings
from quire.bounds import MANY_LOGPROBS, MAX_MANY_LOGPROB_ENTRIES, check_context_length
from quire.errors import InvalidRequest
from quire.options.gateway import GatewayOptions
from quire.reasoning import ReasoningMarks
from quire.rpc.context import current_request_id
from quire.sampling import SAMPLING_BOUNDS, SamplingParameters
from quire.structured.base import Constraint

# Numeric fields that are copied unchanged; max_tokens has different names at the endpoints.
_NUMBERS = tuple(name for name in SAMPLING_BOUNDS if name != "max_tokens")


def make_generation_request(
    body: GenerationFields,
    prompts: Sequence[TokenizedPrompt],
    model: ServedModel,
    *,
    max_tokens: int | None,
    default_max_tokens: int | None = None,
    logprobs: int | None,
    prompt_logprobs: int | None,
    bad_words: Sequence[tuple[int, ...]] = (),
    caller: Caller,
    options: GatewayOptions,
    constraint: Constraint | None = None,
    parsers: Sequence[type[AnswerParser]] = (),
    answer_context: AnswerContext = NO_CONTEXT,
    thinking: Thinking | None = None,
) -> GenerationRequest:
    """Builds the request for the services.

    Args:
        max_tokens: as requested, which must fit the model; capped by the model's generation config.
        default_max_tokens: used if none is requested, as far as it fits; None means as many as fit.
        bad_words: as token ids.
        constraint: on each output.
        parsers: parsers of the choices' text.
        answer_context: what the parsers know of the request.
        thinking: for a chat with a reasoning model.

    Raises:
        InvalidRequest: a prompt is empty, min_tokens exceeds what may be generated, or the request could use too many
            tokens.
        ContextTooLong: a prompt, or a prompt plus max_tokens or min_tokens, does not fit the model.
    """
    sampling = sampling_parameters(body, model.default_sampling)
    limit = sampling.max_tokens
    asked = _least(max_tokens, limit) if max_tokens is not None else None
    output = _least(default_max_tokens, limit) if asked is None else asked
    if output is not None:
        _check_min_tokens(sampling.min_tokens, output, limit)
    marks = thinking.marks if thinking else None
    sampling = msgspec.structs.replace(
        sampling, max_tokens=output, logprobs=logprobs, prompt_logprobs=prompt_logprobs, bad_words=tuple(bad_words),
        reasoning=_needed_marks(body, marks, constraint, options),
        thinking_token_budget=_thinking_budget(body, thinking),
    )  # fmt: skip
    truncated = [truncate(prompt, body, model.max_model_len) for prompt in prompts]
    for prompt in truncated:
        _check_length(prompt.num_tokens, asked, model.max_model_len)
        if sampling.min_tokens:
            check_context_length(prompt.num_tokens, sampling.min_tokens, model.max_model_len, wanted_name="min_tokens")
    output_tokens = check_total(
        truncated, output, body.num_sequences, model.max_model_len, options.max_tokens_per_request
    )
    _check_scores(output_tokens, sampling.logprobs or 0, bool(body.stream))
    return GenerationRequest(
        request_id=body.request_id or current_request_id(),
        model=model.main_name,
        requested_model=body.model or model.served_model_names[0],
        answering_model=model.answering_name(body.model),
        prompts=tuple(truncated),
        sampling=sampling,
        timeout_seconds=options.request_timeout_seconds,
        wants_text=output != 0 and not options.skip_tokenizer_init,
        detokenize=detokenize_options(body, parsers, marks),
        constraint=constraint,
        parsers=tuple(parsers),
        answer_context=answer_context,
        beams=None if output == 0 else beams_of(body, model),
        thinking=thinking,
        priority=caller.priority,
        cache_salt=caller.cache_salt,
        routed_experts=model.routed_experts,
        with_weight_versions=bool(body.return_weight_versions),
        max_model_len=model.max_model_len,
        block_size=model.block_size,
        tenant=caller.tenant,
        session_id=caller.session_id,
        admission=caller.admission,
    )


def _needed_marks(
    body: GenerationFields, marks: ReasoningMarks | None, constraint: Constraint | None, options: GatewayOptions
) -> ReasoningMarks | None:
    """Returns the reasoning marks if engines need them: for a thinking budget, or a constraint on the answer only."""
    held = constraint is not None and options.reasoning.constrains_thinking
    if body.thinking_token_budget is not None and marks and held:
        raise InvalidRequest(
            "thinking_token_budget cannot be combined with a constraint, because this server also constrains the "
            "reasoning (enable_in_reasoning of --structured-outputs-config); leave one of them out.",
            parameter="thinking_token_budget",
        )
    return marks if body.thinking_token_budget is not None or (constraint and not held) else None


def detokenize_options(
    body: GenerationFields, parsers: Sequence[type[AnswerParser]], marks: ReasoningMarks | None
) -> DetokenizeOptions:
    """Returns how the outputs' tokens become text."""
    return DetokenizeOptions(
        skip_special_tokens=body.skip_special_tokens,
        kept_special_tokens=tuple(dict.fromkeys(token for parser in parsers for token in parser.special_tokens)),
        join_special_tokens=body.spaces_between_special_tokens is False,
        stop_strings=stop_strings(body),
        include_stop_string=body.include_stop_str_in_output,
        min_tokens=body.min_tokens or 0,
        reasoning=marks if body.stop else None,
        ends_with_stop_token=body.include_stop_str_in_output,
    )


def context_bound(body: GenerationFields, model: ServedModel) -> int:
    """Returns the maximum number of tokens of a prompt; 0 means no limit, because it will be truncated."""
    return 0 if body.truncate_prompt_tokens is not None else model.max_model_len


def sampling_parameters(body: GenerationFields, defaults: SamplingParameters) -> SamplingParameters:
    """Returns the request's sampling parameters, with defaults from the model's generation config."""
    asked = {name: value for name in _NUMBERS if (value := getattr(body, name)) is not None}
    if body.top_k is not None:
        asked["top_k"] = max(0, body.top_k)  # -1 and 0 both keep all
    return msgspec.structs.replace(
        defaults,
        ignore_eos=body.ignore_eos,
        stop_token_ids=(*defaults.stop_token_ids, *(body.stop_token_ids or ())),
        logit_bias=_logit_bias(body, defaults),
        vllm_xargs=encoded_xargs(body),
        logits_processors=processor_calls(body),
        repetition_detection=body.repetition_detection,
        logprob_token_ids=tuple(body.logprob_token_ids or ()),
        allowed_token_ids=tuple(body.allowed_token_ids or ()),
        watermarking=body.watermarking,
        **asked,
    )


def _logit_bias(body: GenerationFields, defaults: SamplingParameters) -> tuple[tuple[int, float], ...]:
    if not body.logit_bias:
        return defaults.logit_bias
    asked = {int(token_id): bias for token_id, bias in body.logit_bias.items()}
    return tuple((dict(defaults.logit_bias) | asked).items())


def truncate(prompt: TokenizedPrompt, body: GenerationFields, max_model_len: int) -> TokenizedPrompt:
    """Applies `truncate_prompt_tokens`: keeps a prompt's last tokens, or its first ones; -1 means the model's length.

    Raises:
        InvalidRequest: the limit is neither -1 nor positive.
    """
    limit = body.truncate_prompt_tokens
    if limit is None:
        return prompt
    check_truncation(limit)
    most = max_model_len - 1 if limit == -1 else limit
    if prompt.num_tokens <= most:
        return prompt
    if prompt.images:
        raise InvalidRequest(
            f"truncate_prompt_tokens is {limit}, but the prompt has {prompt.num_tokens} tokens, and its "
            "images, videos and audio cannot be cut: leave it out.",
            parameter="truncate_prompt_tokens",
        )
    first = 0 if body.truncation_side == "right" else prompt.num_tokens - most
    embeds = prompt.embeds and prompt.embeds.rows(first, first + most)
    # The block keys are dropped: the remaining tokens may be aligned to blocks differently.
    offsets = prompt.token_offsets[first : first + most]
    return TokenizedPrompt(prompt.token_ids[first : first + most], embeds=embeds, token_offsets=offsets)


def _check_length(prompt: int, max_tokens: int | None, max_model_len: int) -> None:
    if not prompt:
        raise InvalidRequest("The prompt is empty; it needs at least one token.", parameter="prompt")
    check_context_length(prompt, max_tokens, max_model_len)


def _check_min_tokens(min_tokens: int, output: int, limit: int | None) -> None:
    if min_tokens > output:
        why = "the model's generation config (max_new_tokens)" if output == limit else "max_tokens"
        raise InvalidRequest(
            f"min_tokens is {min_tokens}, but {why} allows only {output} tokens: ask for fewer.", parameter="min_tokens"
        )


def _thinking_budget(body: GenerationFields, thinking: Thinking | None) -> int | None:
    """Returns the thinking budget; None if the prompt has already ended the thinking.

    Raises:
        InvalidRequest: the server has no reasoning parser for this model, or this is not a chat.
    """
    budget = body.thinking_token_budget
    if budget is not None and thinking is None:
        raise InvalidRequest(
            "thinking_token_budget is supported only for chats, on servers that separate the model's reasoning from "
            "its answers (--reasoning-parser).",
            parameter="thinking_token_budget",
        )
    return budget if thinking and thinking.marks else None


def _least(*counts: int | None) -> int | None:
    return min((count for count in counts if count is not None), default=None)


def check_total(prompts: Sequence[TokenizedPrompt], output: int | None, n: int, max_model_len: int, limit: int) -> int:
    """Returns the maximum number of tokens that all of the request's choices may generate.

    Args:
        output: maximum per choice; None means as many as fit.

    Raises:
        InvalidRequest: the prompts and their outputs could exceed the token limit of a request.
    """
    prompt_tokens = sum(prompt.num_tokens for prompt in prompts)
    output_tokens = most_output_tokens(prompts, output, n, max_model_len)
    if prompt_tokens + output_tokens > limit:
        raise InvalidRequest(
            f"The request may need {prompt_tokens + output_tokens} tokens, {prompt_tokens} for its prompts and "
            f"{output_tokens} for its choices; at most {limit} are allowed (--max-tokens-per-request): send fewer "
            "prompts, or lower n or max_tokens.",
            parameter="max_tokens" if output_tokens > limit else "prompt",
        )
    return output_tokens


def _check_scores(output_tokens: int, logprobs: int, streams: bool) -> None:
    """
    Raises:
        InvalidRequest: the response would have too many log-probabilities, or too many per stream event.
    """
    if logprobs <= MANY_LOGPROBS:
        return
    if streams:
        raise InvalidRequest(
            f"The request asks for {logprobs} log-probabilities per token; more than {MANY_LOGPROBS} are not "
            "available in streams.",
            parameter="stream",
        )
    if output_tokens * (logprobs + 1) > MAX_MANY_LOGPROB_ENTRIES:
        raise InvalidRequest(
            f"The request asks for {logprobs} log-probabilities for each of up to {output_tokens} tokens; an answer "
            f"has at most {MAX_MANY_LOGPROB_ENTRIES}: lower max_tokens or n, or ask for fewer.",
            parameter="max_tokens",
        )
