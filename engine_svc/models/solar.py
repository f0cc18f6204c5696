"""Solar Pro as of its preview (Upstage 2024): Llama, with sums of earlier layers blended into those of later ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from engine_svc.models import llama
from engine_svc.models.config import Blending, ModelConfig

_KEPT_AND_BLENDED = (("bskcn_1", "bskcn_3"), ("bskcn_2", "bskcn_4"))


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """There are two chains: what comes to a layer of a chain's first list is blended in at layers of its second one.

    The first of the weights is for training. Facts are from vLLM, which has no windows either.

    Raises:
        ValueError: a layer blends with none or with both chains.
    """
    sources: dict[int, int] = {}
    for kept, blended in _KEPT_AND_BLENDED:
        for layer in config[blended]:
            earlier = [each for each in config[kept] if each <= layer]
            if layer in sources or not earlier:
                raise ValueError(f"layer {layer} in {blended}")
            sources[layer] = max(earlier)
    return dataclasses.replace(llama.config_of(config), blending=Blending(sources, config["bskcn_tv"][1]))
