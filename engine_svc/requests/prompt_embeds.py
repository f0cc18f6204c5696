"""Checks that the values of prompt embeddings are finite in the model's dtype."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from quire.errors import InvalidRequest
from quire.prompt_embeds import PromptEmbeds

# Dtype of the embeddings → dtype of the model → the largest magnitude that is finite in both, as bits of the former
# without the sign. The bits of infinities and NaNs are greater.
_MOST: Mapping[str, Mapping[str, int]] = MappingProxyType(
    {
        "float32": {"float32": 0x7F7FFFFF, "bfloat16": 0x7F7F0000, "float16": 0x477FE000},
        "bfloat16": {"float32": 0x7F7F, "bfloat16": 0x7F7F, "float16": 0x477F},
        "float16": {"float32": 0x7BFF, "bfloat16": 0x7BFF, "float16": 0x7BFF},
    }
)


def check_values(embeds: PromptEmbeds, dtype: str) -> None:
    """Checks that all values are finite in the model's dtype.

    Args:
        embeds: embeddings whose dtype and shape have been checked.
        dtype: dtype of the model.

    Raises:
        InvalidRequest: a value is NaN, infinite, or too large for the model's dtype; the message names the first.
    """
    bits = np.frombuffer(embeds.data, "<u4" if embeds.dtype == "float32" else "<u2")
    magnitudes = bits & (0x7FFFFFFF if embeds.dtype == "float32" else 0x7FFF)
    if magnitudes.max() <= _MOST[embeds.dtype][dtype]:
        return
    row, column = divmod(int((magnitudes > _MOST[embeds.dtype][dtype]).argmax()), embeds.hidden_size)
    raise InvalidRequest(
        f"prompt_embeds has a value that is not finite in the model's {dtype}, the first at [{row}, {column}].",
        parameter="prompt_embeds",
    )
