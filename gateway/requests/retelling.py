"""Turns outputs that were generated earlier, given as token ids, into answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from gateway.answers.context import NO_CONTEXT, AnswerContext
from gateway.answers.deltas import Finish, FinishReason, TokenScore
from gateway.answers.parser import AnswerParser
from gateway.protocol.common import GenerationFields
from gateway.protocol.generate import GeneratedLogprob, GeneratedResponse, GeneratedTokens, TokenLogprob
from gateway.requests.convert import detokenize_options
from gateway.requests.generation_request import GenerationRequest, TokenizedPrompt
from gateway.requests.served_model import ServedModel
from gateway.requests.thinking import Thinking
from gateway.requests.validate import check_choices, check_request_id
from quire.bounds import Bound, check_count, check_token_ids
from quire.errors import InvalidRequest
from quire.options.gateway import GatewayOptions
from quire.rpc.context import current_request_id
from quire.sampling import SamplingParameters

_RANK = Bound(0, 2**31 - 1)
_REASONS = {reason.value: reason for reason in FinishReason} | {"tool_calls": FinishReason.STOP}


@dataclass(frozen=True)
class GeneratedPart:
    """Consecutive tokens of one output.

    Attributes:
        scores: logprobs, one entry per token, or none; without token texts.
        finish: set if the output ends with this part.
        ends_with_text: whether the last token of a finished output is ordinary text, not a stop token.
    """

    token_ids: Sequence[int]
    scores: Sequence[TokenScore] = ()
    finish: Finish | None = None
    ends_with_text: bool = False


@dataclass(frozen=True)
class Retelling:
    """How generated tokens become answers."""

    body: GenerationFields
    model: ServedModel
    parsers: Sequence[type[AnswerParser]] = ()
    answer_context: AnswerContext = NO_CONTEXT
    thinking: Thinking | None = None

    def request(
        self, prompts: Sequence[TokenizedPrompt], n: int, request_id: str | None, tenant: str, options: GatewayOptions
    ) -> GenerationRequest:
        """Returns the request whose choices the outputs are.

        Raises:
            InvalidRequest: there are too many choices, or the id is malformed.
        """
        check_choices(len(prompts), n, options.max_choices_per_request)
        check_request_id(request_id)
        names, marks = self.model.served_model_names, self.thinking.marks if self.thinking else None
        return GenerationRequest(
            request_id=request_id or current_request_id(),
            model=self.model.main_name,
            requested_model=self.body.model or names[0],
            answering_model=names[0],
            prompts=tuple(prompts),
            sampling=SamplingParameters(n=n),
            timeout_seconds=options.request_timeout_seconds,
            detokenize=detokenize_options(self.body, self.parsers, marks),
            parsers=tuple(self.parsers),
            answer_context=self.answer_context,
            thinking=self.thinking,
            tenant=tenant,
        )

    def outputs(self, response: GeneratedResponse) -> list[GeneratedPart]:
        """Returns the outputs for one prompt, ordered by choice index.

        Raises:
            InvalidRequest: the indexes are not 0 to n-1, or a choice is malformed.
        """
        choices = sorted(response.choices, key=lambda choice: choice.index)
        if not choices or [choice.index for choice in choices] != list(range(len(choices))):
            raise InvalidRequest("The choices of each response must have the indexes 0, 1, …", parameter="choices")
        ended = [msgspec.structs.replace(choice, finish_reason=choice.finish_reason or "stop") for choice in choices]
        return [self.part(choice) for choice in ended]

    def part(self, choice: GeneratedTokens) -> GeneratedPart:
        """Returns the tokens of a choice, complete or partial.

        Raises:
            InvalidRequest: there are too many tokens, or a token, logprob or finish reason is invalid.
        """
        token_ids = choice.token_ids or []
        self.check(token_ids)
        scores = [_score(entry) for entry in choice.logprobs.content or ()] if choice.logprobs else []
        for score in scores:
            check_token_ids("logprobs", score.token_ids, self.model.vocab_size)
            _RANK.check("rank", score.rank)
        finish = _finish(choice) if choice.finish_reason else None
        return GeneratedPart(token_ids, scores, finish, bool(finish) and not self._ends_it(token_ids[-1:], choice))

    def check(self, token_ids: Sequence[int]) -> None:
        """
        Raises:
            InvalidRequest: there are too many token ids, or some are out of vocabulary.
        """
        check_count("token_ids", len(token_ids), self.model.max_model_len, "tokens")
        check_token_ids("token_ids", token_ids, self.model.vocab_size)

    def _ends_it(self, last: Sequence[int], choice: GeneratedTokens) -> bool:
        stops = (*self.model.eos_token_ids, *self.model.default_sampling.stop_token_ids)
        asked = self.body.stop_token_ids or ()
        return any(token_id in (*stops, *asked, choice.stop_reason) for token_id in last)


def _finish(choice: GeneratedTokens) -> Finish:
    reason = _REASONS.get(choice.finish_reason or "")
    if reason is None:
        raise InvalidRequest(
            f"finish_reason is {str(choice.finish_reason)[:50]!r}; it must be one of {', '.join(_REASONS)}.",
            parameter="finish_reason",
        )
    return Finish(reason, choice.stop_reason)


def _score(entry: GeneratedLogprob) -> TokenScore:
    tokens: list[GeneratedLogprob | TokenLogprob] = [entry, *entry.top_logprobs]
    return TokenScore(
        tuple(token.token_id for token in tokens), tuple(token.logprob for token in tokens), (), entry.rank or 0
    )
