"""SiLU of gates that are clamped (DeepSeek V4, Hunyuan 4, K-EXAONE 2)."""

from __future__ import annotations

import math

from engine_svc.ops.base import ClippedSilu


def clamped_silu(limit: float) -> ClippedSilu:
    """silu(gate) * up with `gate` clamped to at most `limit`, `up` to [-limit, limit]; as good as clamping the SiLU."""
    return ClippedSilu(limit, gate_limit=limit / (1 + math.exp(-limit)))
