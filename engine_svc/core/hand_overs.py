"""Requests whose prompts this worker computes for another one, which loads their blocks and continues."""

from __future__ import annotations

from collections.abc import Callable

from engine_svc.core.live_requests import LiveRequests
from engine_svc.kv_cache.manager import KvCacheManager
from engine_svc.requests.outputs import FinishReason
from engine_svc.requests.sequence import LiveRequest
from quire.errors import PREFILLED, Unavailable

# After the first token, a request waits at most this long for its blocks to be saved: what storage does not take, the
# other worker computes.
_MOST_SECONDS = 5.0


class HandOvers:
    """Ends requests once the blocks of their prompts are saved. Until then they generate as usual."""

    def __init__(self, requests: LiveRequests, kv_cache: KvCacheManager, clock: Callable[[], float]) -> None:
        self._requests = requests
        self._kv_cache = kv_cache
        self._clock = clock
        self._waiting: dict[int, LiveRequest] = {}  # by key

    def add(self, live: LiveRequest) -> None:
        """Notes a request that is to be handed over."""
        self._waiting[live.key] = live

    def settle(self) -> None:
        """Ends the requests that can continue elsewhere, with an error of reason PREFILLED."""
        for key, live in list(self._waiting.items()):
            if self._requests.find(key) is not live:
                del self._waiting[key]
            elif self._is_ready(live):
                del self._waiting[key]
                error = Unavailable("The prompt is computed; another worker continues.", reason=PREFILLED)
                self._requests.end(live, FinishReason.ERROR, error)

    def _is_ready(self, live: LiveRequest) -> bool:
        if live.first_token_time is None:
            return False
        is_late = self._clock() - live.first_token_time > _MOST_SECONDS
        return is_late or self._kv_cache.is_saved(live.sequences[0].table, live.request.num_prompt_tokens)
