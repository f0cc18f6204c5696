"""How long tests fuzz: briefly and always alike as part of the suite, or as long as one likes by hand (`make fuzz`)."""

from __future__ import annotations

import os
import random

NUM_CASES = int(os.environ.get("QUIRE_FUZZ_CASES", "60"))
SEED = int(os.environ.get("QUIRE_FUZZ_SEED", "1"))


def chances() -> random.Random:
    """What all cases of a test are made with."""
    return random.Random(SEED)
