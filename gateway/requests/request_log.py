"""Optional logging of request contents: prompts as token ids, outputs as text."""

from __future__ import annotations

import contextvars
import io
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway.answers.deltas import ChoiceUpdate, content_of
from gateway.requests.state import RequestState
from quire.options.gateway import GatewayOptions

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Outputs:
    """The outputs of a request so far, and the logging context it started in, which has its request id."""

    texts: list[io.StringIO]  # one per choice
    context: contextvars.Context = field(default_factory=contextvars.copy_context)


class RequestLog:
    """Logs requests and outputs as far as the options enable it."""

    def __init__(self, options: GatewayOptions) -> None:
        self._requests, self._outputs = options.enable_log_requests, options.enable_log_outputs
        self._most = options.max_log_len
        self._live: dict[RequestState, _Outputs] = {}

    def started(self, state: RequestState) -> None:
        """Called when a request is about to run. The internal steps of a beam search are not logged."""
        request = state.request
        if self._outputs:
            self._live[state] = _Outputs([io.StringIO() for _ in range(request.choices)])
        if self._requests:
            prompts = [self._cut(prompt.token_ids) for prompt in request.prompts]
            owner = f" of key {request.admission.key.entry.name}" if request.admission else ""
            logger.info(
                "request %s%s for %s: prompt token ids %s, %s",
                request.request_id, owner, request.answering_model, prompts, request.sampling.given(),
            )  # fmt: skip

    def progressed(self, state: RequestState, update: ChoiceUpdate) -> None:
        """Called for each update of a choice."""
        if (outputs := self._live.get(state)) is None:
            return
        text = outputs.texts[update.index]
        text.write(content_of(update.deltas))
        if finish := update.finish:
            said = self._cut(text.getvalue())
            outputs.context.run(
                logger.info, "request %s, choice %d ended by %s: %r",
                state.request.request_id, update.index, finish.reason.value, said,
            )  # fmt: skip

    def ended(self, state: RequestState) -> None:
        """Called when a request has ended, in whatever way."""
        self._live.pop(state, None)

    def _cut(self, said: Sequence[Any]) -> Sequence[Any]:
        return said if self._most is None else said[: self._most]
