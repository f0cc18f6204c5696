"""What is left of the layers of a pruned model."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Pruned(NamedTuple):
    """What is left of a layer's attention and of its feed-forward part; matrix: a single one has replaced it."""

    attention: Literal["whole", "matrix", "none"]
    feed_forward: Literal["whole", "matrix", "none"]


WHOLE = Pruned("whole", "whole")
