"""Slopes of attention with linear biases (ALiBi, Press et al. 2021)."""

from __future__ import annotations

import math


def alibi_slopes(num_heads: int, most: float = 8.0) -> tuple[float, ...]:
    """A geometric sequence down to 2^-most.

    If the number of heads is not a power of two, it is the sequence for the next lower power of two, followed by every
    second element of the sequence for twice that power.
    """
    whole = 2 ** math.floor(math.log2(num_heads))
    first = [2.0 ** (-most * index / whole) for index in range(1, whole + 1)]
    between = [2.0 ** (-most * index / (2 * whole)) for index in range(1, 2 * whole, 2)]
    return tuple((first + between)[:num_heads])
