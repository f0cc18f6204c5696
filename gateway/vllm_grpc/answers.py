"""Converts outputs to answers of the service."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from msgspec import UNSET
from smg_grpc_proto import vllm_engine_pb2

from gateway.answers.collecting import CollectedChoice
from gateway.answers.deltas import ChoiceUpdate, PromptScore, TokenScore
from gateway.context import GatewayContext
from gateway.endpoints import kv_transfer
from gateway.requests.state import RequestState


class Answer:
    """The answer to one request."""

    def __init__(self, context: GatewayContext, state: RequestState, prompt: Sequence[int], *, streams: bool) -> None:
        """
        Args:
            streams: whether tokens are sent as they come, and not all of them at the end.
        """
        self._context = context
        self._state = state
        self._prompt = prompt
        self._streams = streams
        self._choices = [CollectedChoice() for _ in range(state.request.choices)]  # what has not been sent yet
        self._num_tokens = [0] * state.request.choices

    def take(self, update: ChoiceUpdate) -> Iterator[vllm_engine_pb2.GenerateResponse]:
        """Adds an update, and yields what is sent of it at once."""
        choice = self._choices[update.index]
        self._num_tokens[update.index] += len(update.token_ids)
        if not self._streams:
            choice.add(update)
            return
        if finish := update.finish:
            choice.finish = finish
        if update.token_ids or update.prompt_scores:
            yield vllm_engine_pb2.GenerateResponse(chunk=self._chunk(update))

    def completions(self) -> Iterator[vllm_engine_pb2.GenerateResponse]:
        """Yields the ends of all choices. Only when all have ended is it known how much of the prompt was cached."""
        for index, choice in enumerate(self._choices):
            yield vllm_engine_pb2.GenerateResponse(complete=self._completion(index, choice))

    def _chunk(self, update: ChoiceUpdate) -> vllm_engine_pb2.GenerateStreamChunk:
        return vllm_engine_pb2.GenerateStreamChunk(
            token_ids=update.token_ids,
            prompt_tokens=self._state.prompt_tokens,
            completion_tokens=len(update.token_ids),
            cached_tokens=self._state.cached_tokens,
            output_logprobs=self._scored(update.scores),
            input_logprobs=self._prompt_scored(update.prompt_scores),
            index=update.index,
        )

    def _completion(self, index: int, choice: CollectedChoice) -> vllm_engine_pb2.GenerateComplete:
        complete = vllm_engine_pb2.GenerateComplete(
            output_ids=choice.token_ids,
            finish_reason=choice.finish.reason.value,
            prompt_tokens=self._state.prompt_tokens,
            completion_tokens=self._num_tokens[index],
            cached_tokens=self._state.cached_tokens,
            output_logprobs=self._scored(choice.scores),
            input_logprobs=self._prompt_scored(choice.prompt_scores),
            index=index,
        )
        stop_reason = choice.finish.stop_reason
        if isinstance(stop_reason, int):
            complete.matched_token_id = stop_reason
        elif stop_reason is not None:
            complete.matched_stop_str = stop_reason
        transfer = kv_transfer.told(self._context, self._state)
        if transfer is not UNSET and transfer is not None:
            complete.kv_transfer_params_json = msgspec.json.encode(transfer).decode()
        return complete

    def _scored(self, scores: Sequence[TokenScore]) -> vllm_engine_pb2.OutputLogProbs | None:
        if not scores:
            return None
        return vllm_engine_pb2.OutputLogProbs(
            token_ids=[score.token_ids[0] for score in scores],
            token_logprobs=[score.logprobs[0] for score in scores],
            top_logprobs=_top(scores) if self._state.request.sampling.logprobs else (),
        )

    def _prompt_scored(self, scores: Sequence[PromptScore]) -> vllm_engine_pb2.InputLogProbs | None:
        """The first token of a prompt has no score."""
        if not scores:
            return None
        value = vllm_engine_pb2.InputTokenLogProb
        none = [vllm_engine_pb2.TopLogProbs()]
        return vllm_engine_pb2.InputLogProbs(
            token_ids=self._prompt,
            token_logprobs=[value(), *(value(value=score.logprobs[0]) for score in scores)],
            top_logprobs=[*none, *_top(scores)] if self._state.request.sampling.prompt_logprobs else (),
        )


def _top(scores: Sequence[TokenScore] | Sequence[PromptScore]) -> list[vllm_engine_pb2.TopLogProbs]:
    """The most likely tokens at each position."""
    return [vllm_engine_pb2.TopLogProbs(token_ids=score.token_ids[1:], values=score.logprobs[1:]) for score in scores]
