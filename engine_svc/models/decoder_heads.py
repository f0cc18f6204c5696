"""Classification heads on decoders, as in Transformers and in reward models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.models.encoder_config import HEAD, HeadConfig, HeadLayer


def head_of(config: Mapping[str, Any], kind: str, num_labels: int) -> HeadConfig:
    """Reads the head; a sequence is classified by its last token.

    Args:
        kind: SequenceClassification, TokenClassification, or one with two layers, such as RewardModel.
    """
    if kind == "SequenceClassification":
        return HeadConfig((HeadLayer(num_labels, bias=False),), ((r"^score\.", f"{HEAD}0."),), "LAST")
    if kind == "TokenClassification":
        bias = bool(config.get("token_classification_bias", True))
        # Families older than Llama call it classifier.
        return HeadConfig((HeadLayer(num_labels, bias=bias),), ((r"^(score|classifier)\.", f"{HEAD}0."),), "ALL")
    names = ((r"^score\.0\.", f"{HEAD}0."), (r"^score\.2\.", f"{HEAD}1."))
    return HeadConfig((HeadLayer(config["hidden_size"], "relu"), HeadLayer(num_labels)), names, "ALL")
