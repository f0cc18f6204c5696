"""The output of a request so far: all that another worker needs to continue it."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING

from router.workers.assignment import ChoiceProgress

if TYPE_CHECKING:
    from quire.v1 import common_pb2


class Journal:
    """The tokens delivered for each of a request's sequences."""

    __slots__ = ("_finished", "_token_ids", "num_tokens")

    def __init__(self, generation: common_pb2.Generation) -> None:
        """Starts with the progress that the request came with."""
        count = max(1, generation.sampling.n)
        self._token_ids = [array("I") for _ in range(count)]
        self._finished = [False] * count
        self.num_tokens = 0
        for choice, progress in enumerate(generation.progress[:count]):
            self._add(choice, progress.token_ids, progress.finished)

    @property
    def finished(self) -> bool:
        """Whether every sequence has ended."""
        return all(self._finished)

    def stop(self, choice: int, num_tokens: int) -> None:
        """Ends a sequence after its first `num_tokens` tokens; an unknown sequence is ignored."""
        if choice < len(self._finished) and not self._finished[choice]:
            self._finished[choice] = True
            self.num_tokens -= len(self._token_ids[choice][num_tokens:])
            del self._token_ids[choice][num_tokens:]

    def continues(self, delta: common_pb2.GenerationDelta) -> bool:
        """Whether a delta follows the tokens that are here, so that none was lost or repeated. For a sequence that was
        stopped, any does."""
        choice = delta.choice_index
        return (
            delta.num_previous_tokens == len(self._token_ids[choice])  # first, as it is nearly always so
            or self._finished[choice]
            or not delta.HasField("num_previous_tokens")
        )

    def take(self, delta: common_pb2.GenerationDelta) -> None:
        """Records a delta that goes to the caller."""
        self._add(delta.choice_index, delta.token_ids, delta.finish_reason != 0)

    def progress(self) -> Sequence[ChoiceProgress]:
        """All sequences as they are now; empty if nothing has been generated."""
        if not self.num_tokens and not any(self._finished):
            return ()
        return [
            ChoiceProgress(token_ids[:], finished)
            for token_ids, finished in zip(self._token_ids, self._finished, strict=True)
        ]

    def _add(self, choice: int, token_ids: object, finished: bool) -> None:
        if self._finished[choice]:
            return  # these tokens were in transit when it was stopped
        known = self._token_ids[choice]
        before = len(known)
        known.extend(token_ids)  # type: ignore[arg-type]  # a repeated field is iterable
        self.num_tokens += len(known) - before
        if finished:
            self._finished[choice] = True
