"""Requests whose outputs follow a grammar: they wait until it is compiled, and give each step its token masks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import numpy as np

from engine_svc.core.live_requests import LiveRequests
from engine_svc.plan import TokenMasks
from engine_svc.requests.outputs import FinishReason
from engine_svc.requests.sequence import LiveRequest, Sequence
from engine_svc.scheduler.batch import Batch
from engine_svc.scheduler.scheduler import Scheduler
from engine_svc.structured.follower import Endings, Follower
from engine_svc.structured.grammars import Grammars, Wanted, unknown_vocabulary
from quire.structured.base import mask_words

# Engine thread time, shared by all requests, that a request's grammar may take: initially, and for each token. A mask
# usually takes some 30 microseconds, but that of a malicious grammar as many milliseconds.
_MASK_SECONDS = 0.5
_MASK_SECONDS_A_TOKEN = 0.002


class ConstrainedRequests:
    """Attaches grammar followers to sequences and starts them; collects the token masks of a step."""

    def __init__(
        self, grammars: Grammars | None, requests: LiveRequests, scheduler: Scheduler, eos_token_ids: frozenset[int]
    ) -> None:
        """
        Args:
            grammars: None means that requests with a constraint are refused.
            eos_token_ids: end-of-sequence tokens of the model.
        """
        self._grammars = grammars
        self._requests = requests
        self._scheduler = scheduler
        self._eos_token_ids = eos_token_ids

    @property
    def num_waiting(self) -> int:
        """Requests that wait for their grammars. May be read from any thread."""
        return self._grammars.num_waiting if self._grammars else 0

    @property
    def has_news(self) -> bool:
        """Whether `start_ready` would do anything."""
        return self._grammars is not None and self._grammars.has_news

    def wake_by(self, wake: Callable[[], None]) -> None:
        """Registers a function to be called, from any thread, when there may be news."""
        if self._grammars is not None:
            self._grammars.wake_by(wake)

    def add(self, live: LiveRequest) -> None:
        """Starts a request that has just been entered, now or once its grammar is compiled."""
        constraint = live.request.constraint
        if constraint is None:
            self._scheduler.add(live.sequences[0])
            return
        if self._grammars is None:
            self._requests.end(live, FinishReason.ERROR, unknown_vocabulary("it was started without its files"))
            return
        outputs = {each.choice_index: each.token_ids[each.num_prompt_tokens :] for each in live.sequences}
        endings = Endings(live.ending_token_ids, self._eos_token_ids)
        wanted = Wanted(constraint, endings, live.request.sampling.reasoning, outputs)
        live.awaits_grammar = True
        followers = self._grammars.begin(live.key, wanted, live.deadline)
        if followers is not None:
            self._start(live, followers)

    def start_ready(self) -> None:
        """Starts the requests whose grammars have become ready, and ends those whose grammars are invalid."""
        for prepared in self._grammars.take() if self._grammars else ():
            live = self._requests.find(prepared.key)
            if live is None:  # it has ended in the meantime
                continue
            if prepared.error is not None:
                self._requests.end(live, FinishReason.ERROR, prepared.error)
            else:
                self._start(live, prepared.followers)

    def _start(self, live: LiveRequest, followers: Mapping[int, Follower]) -> None:
        """Starts the sequences of a request whose grammar is ready.

        Args:
            followers: by choice; some of the choices may have been stopped in the meantime.
        """
        live.awaits_grammar = False
        for sequence in live.sequences:
            sequence.follower = followers[sequence.choice_index]
        first = live.sequences[0]
        self._scheduler.add(first)
        for sequence in [each for each in live.sequences if each.follower and each.follower.is_ended]:
            self._requests.stop(sequence, sequence.num_output_tokens)  # it was complete on another worker

    def await_tokens(self, batch: Batch) -> bool:
        """Whether the masks of this step depend on tokens that earlier steps have not returned yet."""
        return any(
            sequence.follower is not None and sequence.num_pending_tokens > batch.sampling[slot]
            for slot, sequence in batch.holders().items()
            if slot in batch.sampling
        )

    def masks(self, batch: Batch) -> TokenMasks:
        """Masks of a step whose sequences' tokens are all known. Ends sequences that cannot continue."""
        slots: list[int] = []
        masks: list[bytes] = []
        for slot, sequence in batch.holders().items():
            if slot in batch.sampling and self._grammars is not None and (follower := sequence.follower):
                rows = np.empty((batch.sampling[slot], mask_words(self._grammars.vocab_size)), np.int32)
                start = time.thread_time()
                follower.fill(rows[0])
                sequence.owner.mask_seconds += time.thread_time() - start
                if self._goes_on(sequence, follower):
                    if drafts := batch.drafts.get(slot):
                        batch.longest_runs[slot] = follower.fill_behind(drafts, rows[1:])
                    slots += [slot] * len(rows)
                    masks.append(rows.tobytes())
        return TokenMasks(slots, b"".join(masks))

    def _goes_on(self, sequence: Sequence, follower: Follower) -> bool:
        """Whether a sequence continues; ends it at the end of its grammar, or its request on an error or timeout."""
        live = sequence.owner
        if follower.error:
            self._requests.refuse(sequence, follower.error)
        elif live.mask_seconds > _MASK_SECONDS + _MASK_SECONDS_A_TOKEN * live.completion_tokens:
            why = f"its grammar takes too much time: {live.mask_seconds:.1f} s for {live.completion_tokens} tokens"
            self._requests.refuse(sequence, f"{why}; use a simpler constraint")
        elif follower.is_ended:
            self._requests.stop(sequence, sequence.num_output_tokens)
        else:
            return True
        return False

    def close(self) -> None:
        """Ends the threads that compile grammars."""
        if self._grammars is not None:
            self._grammars.close()
