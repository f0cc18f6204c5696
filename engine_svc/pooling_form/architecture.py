"""Parses an architecture's name: the model family, and the head on top of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quire.options.pooling import PoolingOptions
from quire.retrievers import RETRIEVERS

MODULES_FILE = "modules.json"
# Models that generate, although their names say otherwise.
_GENERATORS = ("AquilaModel", "ChatGLMModel")
# Suffixes after a family's name, in the order in which they are tried.
_GENERATES = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
_BASES = ("ForMaskedLM", "ForPreTraining", "ForSentenceEmbedding", "Model")
_HEADS = (
    "ForSequenceClassification", "ForTokenClassification", "ForProcessRewardModel", "ForRewardModel", "ForReward",
)  # fmt: skip
_COLBERT = ("HF_ColBERT", "ColBERTModel")
RANKING = "Ranking"  # the kind of jina-reranker-m0, which is a reward model with a prompt and a scale of its own
JINA_RERANKER = "JinaVLForRanking"
# Type of a vision-language model → its family.
_FAMILIES = {"qwen2_vl": "Qwen2VL", "qwen2_5_vl": "Qwen2_5_VL", "qwen3_vl": "Qwen3VL"}
# The optional "Text" is in names of text models of vision-language families.
_NAME = re.compile(f"(.+?)(?:Text)?({'|'.join((*_HEADS, *_GENERATES, *_BASES))})")


@dataclass(frozen=True)
class Architecture:
    """The parsed name of one of a configuration's `architectures`."""

    name: str
    family: str  # such as Bert, Qwen3
    kind: str  # CausalLM, base, ColBERT, SequenceClassification, TokenClassification, RewardModel, ...

    @property
    def has_classes(self) -> bool:
        """Whether its checkpoints have a classification head."""
        return self.kind not in ("CausalLM", "base", "ColBERT")


def architecture_of(config: Mapping[str, Any]) -> Architecture | None:
    """The architecture of a config.json; None if no name is recognized."""
    for name in config.get("architectures") or ():
        if name in _COLBERT:
            return Architecture(name, "Bert", "ColBERT")
        if name == JINA_RERANKER:
            return Architecture(name, "Qwen2VL", RANKING)
        if name in RETRIEVERS and (family := _FAMILIES.get(config.get("model_type", RETRIEVERS[name]))):
            return Architecture(name, family, "ColBERT")
        if found := _NAME.fullmatch(name):
            return Architecture(name, found[1], "CausalLM" if name in _GENERATORS else _kind(found[2]))
    return None


def _kind(suffix: str) -> str:
    if suffix in _GENERATES:
        return "CausalLM"
    if suffix in _BASES:
        return "base"
    return "RewardModel" if suffix == "ForReward" else suffix.removeprefix("For")


def is_pooling(config: Mapping[str, Any], folder: Path, options: PoolingOptions) -> bool:
    """Whether a model is served for pooling instead of generation.

    Args:
        folder: the model's folder or file.
    """
    if options.runner != "auto":
        return options.runner == "pooling"
    if options.convert not in ("auto", "none"):
        return True
    found = architecture_of(config)
    if found is not None and found.kind != "CausalLM":
        return True
    return folder.is_dir() and (folder / MODULES_FILE).is_file()
