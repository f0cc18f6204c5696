"""Options of how the model is computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from quire.options.base import option

QUANTIZATIONS = ("int8",)
DTYPES = ("bfloat16", "float16", "float32", "half", "float")


@dataclass(frozen=True)
class ModelFormOptions:
    """How the model is computed: types, length, code."""

    group: ClassVar[str] = "ModelConfig"

    dtype: str = option(
        "auto",
        "Data type of weights and activations; auto takes the checkpoint's.",
        choices=("auto", *DTYPES),
        affects_output=True,
    )
    max_model_len: int | None = option(
        None, "Longest sequence, prompt and output together, in tokens. Default: what the model's configuration says.",
        minimum=1,
    )  # fmt: skip
    hf_overrides: dict[str, Any] = option({}, "Changes to the model's config.json, as JSON.", affects_output=True)
    model_impl: str = option(
        "auto", "Who runs the layers: quire, or transformers, that library's own code (any causal decoder; slower), "
        "or auto: quire for its own families and transformers for others.", choices=("auto", "quire", "transformers"),
        affects_output=True,
    )  # fmt: skip
    quantization: str | None = option(
        None, "int8 quantizes the linear layers of any checkpoint while loading it, and their inputs as they come "
        "(dynamic W8A8, a scale for each output and each token).", aliases=("-q",), choices=QUANTIZATIONS,
        others="It quantizes checkpoints of 16 or 32 bits. Those that are quantized already (AWQ, GPTQ, FP8, GGUF and "
        "others) are not read, but gpt-oss in MXFP4, which needs no option.",
        affects_output=True,
    )  # fmt: skip
