"""Vocabulary for pausing engines and putting them to sleep, shared by callers and engines."""

from __future__ import annotations

import enum
from typing import Final

WEIGHTS: Final = "weights"
KV_CACHE: Final = "kv_cache"
# The parts that can be woken; the last one stands for a sleep in which nothing was released.
PARTS: Final = (WEIGHTS, KV_CACHE, "scheduling")


class SleepLevel(enum.IntEnum):
    """How much memory an engine releases while it sleeps."""

    PAUSED = 0  # nothing
    WEIGHTS_KEPT = 1  # the KV cache; on a GPU also the weights, which are kept in host memory meanwhile
    WEIGHTS_FORGOTTEN = 2  # the weights too, which are loaded again


class Leaving(enum.Enum):
    """What happens to an engine's requests when it is paused."""

    ABORT = "abort"  # they end at once, with their output so far
    WAIT = "wait"  # it is paused once the last of them has ended; new ones are refused meanwhile
    KEEP = "keep"  # they are suspended, and continue afterward
