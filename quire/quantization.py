"""The names of the quantisation methods that an engine can apply to any checkpoint while it loads."""

from __future__ import annotations

# Each has its file of that name in engine_svc/quantization.
QUANTIZATIONS = ("int8",)
