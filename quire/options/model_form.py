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
    """How the model is computed: types, length, code."""

    group: ClassVar[str] = "ModelConfig"

    dtype: str = option(
        "auto",
        "Data type of weights and activations; auto takes the checkpoint's.",
        choices=("auto", *DTYPES),
        affects_output=True,
    )
    max_model_len: int | None = option(
        None, "Longest sequence, prompt and output together, in tokens. By default, and with auto, what the model's "
        "configuration says, or what the memory for the KV cache holds of it.",
        minimum=1,
    )  # fmt: skip
    config_format: str = option(
        "auto",
        "File that has the model's configuration: hf (config.json), mistral (params.json), or auto, the first of these "
        "that there is.",
        choices=("auto", *CONFIG_FORMATS),
        affects_output=True,
    )
    hf_config_path: str | None = option(
        None, "Folder of another configuration than the model's, or its name on the Hugging Face hub.",
        metavar="PATH|NAME", affects_output=True,
    )  # fmt: skip
    rope_scaling: dict[str, Any] = option(
        {},
        'Rotary scaling in place of the model\'s, as JSON, such as {"rope_type": "dynamic", "factor": 2.0}: it lets '
        "--max-model-len be longer by the factor. Answers get worse with it: little at 2, much at 8.",
        affects_output=True,
    )
    rope_theta: float | None = option(None, "Rotary base in place of the model's.", minimum=1.0, affects_output=True)
    disable_sliding_window: bool = option(
        False, "Lets all layers see the whole context, and makes the sliding window's length the longest; of no effect "
        "on models without one.", affects_output=True,
    )  # fmt: skip
    hf_overrides: dict[str, Any] = option({}, "Changes to the model's config.json, as JSON.", affects_output=True)
    model_impl: str = option(
        "auto", "Who runs the layers: quire, or transformers, that library's own code (any causal decoder; slower), "
        "or auto: quire for its own families and transformers for others. vllm is another name of quire.",
        choices=("auto", "quire", "vllm", "transformers"),
        others="terratorch runs models of satellite images, which neither read nor write the text that Quire serves: "
        "run them by TerraTorch itself.",
        affects_output=True,
    )  # fmt: skip
    quantization: str | None = option(
        None, "What to quantize a checkpoint of 16 or 32 bits to while loading it: int8 (the linear layers, and their "
        "inputs as they come: W8A8), fp8, int4 (groups of 128), torchao (8 bits) or bitsandbytes (NF4; all four "
        "the linear layers' weights), or experts_int8 (the experts' weights alone). Checkpoints that are quantized, by "
        "these or the others, need no option. docs/quantization.md has a table.", aliases=("-q",),
        choices=(*QUANTIZATIONS, *QUANTIZATION_ALIASES), refused=REFUSED_QUANTIZATIONS,
        others="Those that are quantized already need no option.",
        affects_output=True,
    )  # fmt: skip
