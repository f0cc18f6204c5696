"""The live requests of the engine, and their deltas that have not been reported yet."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator

from engine_svc.core.statistics import EngineStatistics
from engine_svc.plan import PositionLogprobs
from engine_svc.requests.outputs import FinishReason, SequenceDelta, Usage
from engine_svc.requests.sampling_validation import num_many_logprobs
from engine_svc.requests.sequence import LiveRequest, Sequence, SequenceState
from engine_svc.scheduler.scheduler import Scheduler
from quire.bounds import MAX_STEP_LOGPROB_ENTRIES
from quire.errors import InvalidRequest, QuireError

_STALE_DEADLINES = 1024


class LiveRequests:
    """Keeps the live requests: each is entered once and always ends with exactly one final delta."""

    def __init__(self, scheduler: Scheduler, clock: Callable[[], float], statistics: EngineStatistics) -> None:
        self._scheduler = scheduler
        self._statistics = statistics
        self._clock = clock
        self._live: dict[int, LiveRequest] = {}
        self._deadlines: list[tuple[float, int]] = []
        self._deltas: list[SequenceDelta] = []
        self.weight_version = ""  # of the weights that compute tokens from now on

    def __iter__(self) -> Iterator[LiveRequest]:
        return iter(list(self._live.values()))

    @property
    def has_deltas(self) -> bool:
        """Whether `take` would return any."""
        return bool(self._deltas)

    def enter(self, live: LiveRequest) -> None:
        """Registers a request."""
        self._live[live.key] = live
        self._scheduler.adapters.enter(live.request.adapter)
        if live.deadline is not None:
            if len(self._deadlines) > _STALE_DEADLINES + 2 * len(self._live):
                self._deadlines = [entry for entry in self._deadlines if entry[1] in self._live]
                heapq.heapify(self._deadlines)
            heapq.heappush(self._deadlines, (live.deadline, live.key))

    def has_too_many_logprobs(self, live: LiveRequest) -> bool:
        """Whether the logprobs of this request and others with very many would exceed the memory bound of a step."""
        if not num_many_logprobs(live.request.sampling):
            return False
        wanted = (each.request.sampling for each in self._live.values())
        return sum(each.n * num_many_logprobs(each) for each in wanted) > MAX_STEP_LOGPROB_ENTRIES

    def find(self, key: int) -> LiveRequest | None:
        """The request with this key; None if it has ended."""
        return self._live.get(key)

    @property
    def has_expired(self) -> bool:
        """Whether `expired` would find any."""
        return bool(self._deadlines) and self._deadlines[0][0] <= self._clock()

    def expired(self) -> Iterator[LiveRequest]:
        """Yields the live requests whose deadline has passed, each once."""
        while self.has_expired:
            if live := self._live.get(heapq.heappop(self._deadlines)[1]):
                yield live

    def report(self, delta: SequenceDelta) -> None:
        """Adds a delta of a request that continues."""
        self._deltas.append(delta)

    def take(self) -> list[SequenceDelta]:
        """Returns all deltas since the last call."""
        deltas, self._deltas = self._deltas, []
        return deltas

    def finish(
        self,
        sequence: Sequence,
        reason: FinishReason,
        token_ids: list[int],
        logprobs: list[PositionLogprobs] | None = None,
        prompt_logprobs: list[PositionLogprobs] | None = None,
        stop_token_id: int | None = None,
        routed_experts: list[bytes] | None = None,
        sampling_masks: list[list[int]] | None = None,
    ) -> None:
        """Ends one sequence, and its request if this was the last unfinished one."""
        live, choice = sequence.owner, sequence.choice_index
        self._scheduler.finish(sequence)
        live.unfinished -= 1
        final = live.unfinished == 0
        usage = self._strike(live) if final else None
        by_token = token_ids and token_ids[-1] in live.ending_token_ids
        self._deltas.append(
            SequenceDelta(
                live.key, choice, token_ids, logprobs, prompt_logprobs, reason, stop_token_id, final, usage,
                ended_by_constraint=reason is FinishReason.STOP and not by_token,
                num_previous_tokens=sequence.num_output_tokens - len(token_ids) if token_ids else None,
                routed_experts=routed_experts, sampling_masks=sampling_masks, weight_version=self.weight_version,
            )
        )  # fmt: skip

    def stop(self, sequence: Sequence, num_output_tokens: int) -> None:
        """Ends one sequence in which the caller has found a stop string; `num_output_tokens` of its output count."""
        live = sequence.owner
        live.completion_tokens -= max(0, sequence.num_output_tokens - num_output_tokens)
        if live.first_token_time is None:
            # The other sequences wait for the first one to compute the prompt. If it is this one, the next takes over.
            live.sequences.remove(sequence)
            if sequence.wants_prompt_logprobs:
                live.prompt_logprobs.clear()
            if live.sequences and not live.awaits_grammar and live.sequences[0].state is SequenceState.CREATED:
                self._scheduler.add(live.sequences[0])
        self.finish(sequence, FinishReason.STOP, [])

    def refuse(self, sequence: Sequence, why: str) -> None:
        """Ends the request of a sequence that cannot follow its constraint any further."""
        error = InvalidRequest(f"The output can no longer follow its constraint: {why}.", parameter="constraint")
        self.end(sequence.owner, FinishReason.ERROR, error)

    def end(self, live: LiveRequest, reason: FinishReason, error: QuireError | None = None) -> None:
        """Ends all sequences of a request at once."""
        for sequence in live.sequences:
            self._scheduler.finish(sequence)
        usage = self._strike(live)
        self._deltas.append(
            SequenceDelta(live.key, 0, [], finish_reason=reason, is_final=True, usage=usage, error=error)
        )

    def _strike(self, live: LiveRequest) -> Usage:
        """Unregisters a request and returns its usage."""
        del self._live[live.key]
        self._scheduler.adapters.leave(live.request.adapter)
        now = self._clock()
        scheduled = now if live.first_scheduled_time is None else live.first_scheduled_time
        first = now if live.first_token_time is None else live.first_token_time
        last = first if live.last_token_time is None else live.last_token_time
        forward, execute = self._statistics.step_seconds
        forward_before, execute_before = live.step_seconds_before or (forward, execute)
        return Usage(
            prompt_tokens=live.request.num_prompt_tokens,
            completion_tokens=live.completion_tokens,
            cached_prompt_tokens=live.cached_prompt_tokens,
            queue_seconds=max(0.0, scheduled - live.arrival_time),
            prefill_seconds=max(0.0, first - scheduled),
            decode_seconds=max(0.0, last - first),
            preemptions=live.preemptions,
            forward_seconds=forward - forward_before,
            execute_seconds=execute - execute_before,
        )
