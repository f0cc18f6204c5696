"""`/v1/completions`."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

from gateway.protocol.common import GenerationFields, KvTransferParams, PromptLogprobs, Usage, WeightSpan
from gateway.protocol.fields import Flag


class CompletionRequest(GenerationFields, kw_only=True):
    """One or more prompts to continue, given as text, token ids or embeddings."""

    prompt: str | list[str | int | list[int]] | None = None
    prompt_embeds: str | list[str] | None = None
    logprobs: int | None = None
    add_special_tokens: Flag = True


class CompletionLogprobs(msgspec.Struct):
    """Log-probabilities; each list has one entry per token."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class CompletionChoice(msgspec.Struct):
    """One of the n continuations of one of the prompts."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType | None = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType | None = UNSET
    prompt_text: str | UnsetType = UNSET
    routed_experts: str | UnsetType | None = UNSET
    weight_versions: Sequence[WeightSpan] | UnsetType = UNSET


class Completion(msgspec.Struct):
    """The complete response, and each chunk of a stream."""

    id: str
    object: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType = UNSET
    system_fingerprint: str | UnsetType | None = UNSET
    kv_transfer_params: KvTransferParams | UnsetType | None = UNSET
