"""Settings of --watermark-config: how sampled tokens are marked, so that whoever has the key can recognize them."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import Annotated, Any, Literal

import msgspec

from quire.options.base import option

GUMBEL, DUAL_KEY_GUMBEL = "gumbel", "dual_key_gumbel"


class WatermarkConfig(msgspec.Struct, frozen=True):
    """Keys of --watermark-config, as vLLM names them."""

    key: Any = None  # not a typed number, because messages about wrong types show the value
    algorithm: str = GUMBEL
    alpha: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.1  # the part of tokens that are marked with the second key
    context_width: Annotated[int, msgspec.Meta(ge=1, le=64)] = 4  # tokens that the noise follows from
    # Where a context is looked for that has been marked before, after which tokens are sampled as usual; among that
    # many positions, None meaning all.
    deduplicate_contexts: Literal["none", "single_turn", "all"] = "single_turn"
    deduplicate_contexts_max_history: Annotated[int, msgspec.Meta(ge=1)] | None = 8192
    prf: Literal["philox"] = "philox"
    allow_target_only_watermarking: bool = False  # without effect: all tokens are marked, drafted or not

    def __post_init__(self) -> None:
        if isinstance(self.key, bool) or not isinstance(self.key, int) or not 0 <= self.key < 2**64:
            raise ValueError("key must be a whole number from 0 to 18446744073709551615; it is not shown here.")
        if self.algorithm not in (GUMBEL, DUAL_KEY_GUMBEL):
            raise ValueError(f"algorithm is {self.algorithm[:50]!r}; it must be {GUMBEL} or {DUAL_KEY_GUMBEL}.")

    def keys(self) -> dict[int, float]:
        """The keys that tokens are marked with, and the part of the tokens that each marks."""
        if self.algorithm == GUMBEL:
            return {self.key: 1.0}
        return {self._derived(b"key_a"): 1 - self.alpha, self._derived(b"key_b"): self.alpha}

    def _derived(self, name: bytes) -> int:
        return int.from_bytes(sha256(name + self.key.to_bytes(8, "big")).digest()[:8], "big")


@dataclass(frozen=True)
class WatermarkOptions:
    """Watermarks of outputs."""

    watermark_config: dict[str, Any] = option(
        {}, "Marks sampled text, so that `quire detect-watermark` recognizes it, as JSON or key by key. Keys: key (a "
        f"secret number below 2**64), algorithm ({GUMBEL}, or {DUAL_KEY_GUMBEL}, whose choices of one request "
        "differ), alpha (the part of tokens with the second key: 0.1), context_width (4), deduplicate_contexts (none, "
        "single_turn or all: where a context is marked only once), deduplicate_contexts_max_history (8192), prf "
        "(philox).", schema=WatermarkConfig, secret=True, affects_output=True,
    )  # fmt: skip

    def watermark(self) -> WatermarkConfig | None:
        """The settings; None if nothing is marked."""
        return msgspec.convert(self.watermark_config, WatermarkConfig) if self.watermark_config else None
