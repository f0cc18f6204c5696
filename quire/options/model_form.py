"""Options for how the model is computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from quire.options.base import option
from quire.options.quantizations import QUANTIZATION_ALIASES, REFUSED_QUANTIZATIONS

QUANTIZATIONS = (
    "int8", "int4", "fp8", "experts_int8", "compressed-tensors", "modelopt", "quark", "fbgemm_fp8", "mxfp4", "awq",
    "gptq", "gguf", "bitsandbytes", "torchao", "hqq", "auto-round",
)  # fmt: skip
CONFIG_FORMATS = ("hf", "mistral")
DTYPES = ("bfloat16", "float16", "float32", "half", "float")


@dataclass(frozen=True)
class ModelFormOptions:
    """Model configuration: data types, length, implementation."""

    group: ClassVar[str] = "ModelConfig"

    dtype: str = option(
        "auto",
        "Data type of weights and activations; auto takes the checkpoint's.",
        choices=("auto", *DTYPES),
        affects_output=True,
    )
    max_model_len: int | None = option(
        None, "Maximum length of a sequence, prompt and output together, in tokens. By default, and with auto: the "
        "length in the model's configuration, or as much of it as fits in the KV cache.",
        minimum=1,
    )  # fmt: skip
    config_format: str = option(
        "auto",
        "File with the model's configuration: hf (config.json), mistral (params.json), or auto, the first of these "
        "that exists.",
        choices=("auto", *CONFIG_FORMATS),
        affects_output=True,
    )
    hf_config_path: str | None = option(
        None, "Folder, or name on the Hugging Face hub, of a configuration to use instead of the model's.",
        metavar="PATH|NAME", affects_output=True,
    )  # fmt: skip
    rope_scaling: dict[str, Any] = option(
        {},
        'RoPE scaling to use instead of the model\'s, as JSON, such as {"rope_type": "dynamic", "factor": 2.0}: '
        "allows a longer --max-model-len, by the factor. Answers get worse: slightly at 2, much at 8.",
        affects_output=True,
    )
    rope_theta: float | None = option(
        None, "RoPE base (theta) to use instead of the model's.", minimum=1.0, affects_output=True
    )
    disable_sliding_window: bool = option(
        False, "Makes all layers attend to the whole context, and limits the model's length to that of the sliding "
        "window. No effect on models without one.", affects_output=True,
    )  # fmt: skip
    hf_overrides: dict[str, Any] = option({}, "Overrides for the model's config.json, as JSON.", affects_output=True)
    model_impl: str = option(
        "auto", "Implementation of the model's layers: quire; transformers, that library's own code (any causal "
        "decoder; slower); or auto: quire for its own families, transformers for others. vllm is another name for "
        "quire.",
        choices=("auto", "quire", "vllm", "transformers"),
        others="terratorch runs models for satellite images, but Quire answers in text; use TerraTorch itself.",
        affects_output=True,
    )  # fmt: skip
    quantization: str | None = option(
        None, "Quantizes a 16- or 32-bit checkpoint as it loads: int8 (the linear layers, with dynamically quantized "
        "inputs: W8A8); fp8, int4 (groups of 128), torchao (8 bits) or bitsandbytes (NF4) (only the weights of the "
        "linear layers); or experts_int8 (only the weights of the experts). Checkpoints that are already quantized, "
        "with these or the other methods, need no option. See the table in docs/quantization.md.",
        aliases=("-q",),
        choices=(*QUANTIZATIONS, *QUANTIZATION_ALIASES), refused=REFUSED_QUANTIZATIONS,
        others="Checkpoints that are already quantized need no option.",
        affects_output=True,
    )  # fmt: skip
