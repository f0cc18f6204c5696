"""The words for an engine that is paused or sleeps: what callers say, and what engines obey."""

from __future__ import annotations

import enum
from typing import Final

WEIGHTS: Final = "weights"
KV_CACHE: Final = "kv_cache"
# What can be woken; the last one stands for a sleep in which nothing was given back.
PARTS: Final = (WEIGHTS, KV_CACHE, "scheduling")


class SleepLevel(enum.IntEnum):
    """How much an engine gives back while it sleeps."""

    PAUSED = 0  # nothing
    WEIGHTS_KEPT = 1  # the KV cache; of a GPU the weights too, which lie in host memory meanwhile
    WEIGHTS_FORGOTTEN = 2  # the weights too, which are read anew


class Leaving(enum.Enum):
    """What becomes of the requests that an engine has when it is paused."""

    ABORT = "abort"  # they end at once, with what they have
    WAIT = "wait"  # it is paused when the last of them has ended; new ones are refused meanwhile
    KEEP = "keep"  # they stand still, and go on afterwards
