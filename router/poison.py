"""Requests that take workers down with them, kept away from the rest of the fleet."""

from __future__ import annotations

import hashlib

from quire.errors import Internal
from quire.v1 import common_pb2
from router.clock import Clock

_CRASHES = 2
_SECONDS = 600.0
_MOST = 4096  # prompts remembered; the oldest goes first


class Poison:
    """Prompts that were aboard, and had not begun to answer, when workers crashed."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._crashes: dict[bytes, tuple[int, float]] = {}  # prompt → crashes, time of the last

    def __len__(self) -> int:
        return len(self._crashes)

    def suspect(self, generation: common_pb2.Generation) -> bool:
        """A worker crashed with the request on it; whether it must not be tried again."""
        name, now = _name(generation), self._clock.time()
        count, last = self._crashes.pop(name, (0, now))
        count = count + 1 if now - last < _SECONDS else 1
        if len(self._crashes) >= _MOST:
            del self._crashes[next(iter(self._crashes))]
        self._crashes[name] = (count, now)
        return count >= _CRASHES

    def check(self, generation: common_pb2.Generation) -> None:
        """
        Raises:
            Internal: the prompt was aboard at too many crashes, and not long ago.
        """
        if not self._crashes:
            return
        count, last = self._crashes.get(_name(generation), (0, 0.0))
        if count >= _CRASHES and self._clock.time() - last < _SECONDS:
            raise Internal(
                f"Engine workers crashed {count} times on this prompt; it is refused for {_SECONDS / 60:g} minutes.",
                reason="ENGINE_FAULT",
            )


def _name(generation: common_pb2.Generation) -> bytes:
    prompt = common_pb2.Generation(prompt_token_ids=generation.prompt_token_ids)
    return hashlib.blake2b(prompt.SerializeToString(), digest_size=16).digest()
