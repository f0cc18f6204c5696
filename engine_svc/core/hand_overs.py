"""Requests whose prompts this worker computes for another one, which loads their blocks and continues."""

from __future__ import annotations

from collections.abc import Callable

from engine_svc.core.live_requests import LiveRequests
from engine_svc.kv_cache.manager import KvCacheManager
from engine_svc.requests.outputs import FinishReason, SequenceDelta
from engine_svc.requests.sequence import LiveRequest
from quire.errors import PREFILLED, Unavailable

# After the first token, a request waits at most this long for its blocks to be saved: what storage does not take, the
# other worker computes.
_MOST_SECONDS = 5.0


class HandOvers:
    """Sees to it that requests continue elsewhere once the blocks of their prompts are saved.

    One that a worker of the same deployment continues (`hands_over`) generates as usual until then, and is ended. One
    that another deployment continues (`remote_decode`) ends by itself, and its last delta waits until then.
    """

    def __init__(self, requests: LiveRequests, kv_cache: KvCacheManager, clock: Callable[[], float]) -> None:
        self._requests = requests
        self._kv_cache = kv_cache
        self._clock = clock
        self._waiting: dict[int, LiveRequest] = {}  # by key
        self._remote: dict[int, LiveRequest] = {}  # by key
        self._held: list[tuple[SequenceDelta, LiveRequest]] = []

    @property
    def is_holding(self) -> bool:
        """Whether any delta waits."""
        return bool(self._held)

    def add(self, live: LiveRequest) -> None:
        """Notes a request, if it is to continue elsewhere."""
        if live.request.hands_over:
            self._waiting[live.key] = live
        elif live.request.remote_decode:
            self._remote[live.key] = live

    def settle(self) -> None:
        """Ends the requests that can continue elsewhere, with an error of reason PREFILLED."""
        for key, live in list(self._waiting.items()):
            if self._requests.find(key) is not live:
                del self._waiting[key]
            elif self._is_ready(live):
                del self._waiting[key]
                error = Unavailable("The prompt is computed; another worker continues.", reason=PREFILLED)
                self._requests.end(live, FinishReason.ERROR, error)

    def pass_on(self, deltas: list[SequenceDelta]) -> list[SequenceDelta]:
        """Returns what may be reported now: of these deltas, and of those that wait."""
        if not (self._remote or self._held):
            return deltas
        passed = []
        for delta in deltas:
            live = self._remote.pop(delta.key, None) if delta.is_final else None
            if live is None or not _has_prompt(live, delta):
                passed.append(delta)
            else:
                self._held.append((delta, live))
        waiting, self._held = self._held, []
        for delta, live in waiting:
            if self._is_ready(live):
                passed.append(delta)
            else:
                self._held.append((delta, live))
        return passed

    def let_go(self) -> list[SequenceDelta]:
        """Returns the deltas that wait, which then no longer do."""
        waiting, self._held = self._held, []
        return [delta for delta, _ in waiting]

    def _is_ready(self, live: LiveRequest) -> bool:
        if live.first_token_time is None:
            return False
        is_late = self._clock() - live.first_token_time > _MOST_SECONDS
        return is_late or self._kv_cache.is_saved(live.sequences[0].table, live.request.num_prompt_tokens)


def _has_prompt(live: LiveRequest, last: SequenceDelta) -> bool:
    """Whether a request that has ended has computed its prompt, and may continue."""
    return live.first_token_time is not None and last.finish_reason not in (FinishReason.ABORT, FinishReason.ERROR)
