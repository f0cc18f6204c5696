"""Vision-language models with a projection that makes a vector of each token, for late interaction (ColPali; Faysse et
al. 2024).

Their configurations differ from those of the models that they are made of. And rerankers made of such models.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

# Architecture → type of the vision-language model; those of Transformers have its configuration within their own.
RETRIEVERS = MappingProxyType({
    "ColQwen2": "qwen2_vl",
    "ColQwen2ForRetrieval": "qwen2_vl",
    "ColQwen2_5": "qwen2_5_vl",
    "ColQwen3": "qwen3_vl",
    "OpsColQwen3Model": "qwen3_vl",
})  # fmt: skip
PREFIX = "vlm."  # of the vision-language model's tensors, in those of Transformers and others
# Their processors → those of the vision-language models.
RETRIEVERS_PROCESSORS = MappingProxyType({
    "ColQwen2Processor": "Qwen2VLProcessor",
    "ColQwen2_5_Processor": "Qwen2_5_VLProcessor",
    "ColQwen3Processor": "Qwen3VLProcessor",
    "OpsColQwen3Processor": "Qwen3VLProcessor",
})  # fmt: skip
# Rerankers whose prompts have the document before the query.
DOCUMENT_FIRST = frozenset({"JinaVLForRanking"})


def as_vision_language_model(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration in the layout of the vision-language model, with the architecture's own name.

    Other models' configurations are returned unchanged.
    """
    name = next((each for each in config.get("architectures") or () if each in RETRIEVERS), None)
    if name is None:
        return dict(config)
    inner = config.get("vlm_config")
    inner = dict(inner) if isinstance(inner, Mapping) else {}
    own = {field: value for field, value in config.items() if field != "vlm_config"}
    return own | {"model_type": RETRIEVERS[name], **inner, "architectures": [name]}
