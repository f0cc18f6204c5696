"""Further names of quantization methods: aliases of supported methods, and names that are refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

# Name → methods here that read what other servers call so.
QUANTIZATION_ALIASES: Mapping[str, Sequence[str]] = {
    "awq_marlin": ("awq",), "gptq_marlin": ("gptq",), "gptqmodel": ("gptq",), "marlin": ("gptq", "awq"),
    "ipex": ("awq", "gptq"), "intel/auto-round": ("auto-round",),
    "tpu_int8": ("int8",), "neuron_quant": ("int8",), "modelopt_fp4": ("modelopt",), "modelopt_fp8": ("modelopt",),
}  # fmt: skip

# vLLM's schemes of quantizing while loading → the method here: at least as exact, since inputs keep 16 or 32 bits.
ONLINE_SCHEMES: Mapping[str, str] = {
    "fp8_per_tensor": "fp8", "fp8_per_block": "fp8", "int8_per_channel_weight_only": "experts_int8",
}  # fmt: skip

# Name → why it is refused, and what to use instead.
REFUSED_QUANTIZATIONS: Mapping[str, str] = {
    "aqlm": "AQLM's weights are sums of vectors from learned codebooks, which no kernel of Quire supports. Use the "
    "model quantized with AWQ or GPTQ, or its 16-bit checkpoint with --quantization int4.",
    "deepspeedfp": "DeepSpeed's own CUDA library makes its 6-, 8- and 12-bit floating-point numbers from 16-bit "
    "weights as they load. Use the model's 16-bit checkpoint, without quantization_config in config.json, and "
    "--quantization fp8.",
    "gptq_marlin_24": "These weights are sparse (2 of 4) and stored in the layout of Marlin's 2:4 kernel for NVIDIA "
    "GPUs. Use a GPTQ checkpoint without sparsity.",
    "qqq": "QQQ's 4-bit weights are stored in the layout of its kernel for NVIDIA GPUs, which multiplies them with "
    "8-bit inputs. Use a 4-bit GPTQ or AWQ checkpoint.",
    "squeezellm": "SqueezeLLM looks up weights in a separate table for each output, which no kernel of Quire supports. "
    "Use the model quantized with AWQ or GPTQ, or its 16-bit checkpoint with --quantization int4.",
}

# The same for checkpoints, one of whose methods has a name that means more as an option.
REFUSED_CHECKPOINTS: Mapping[str, str] = {
    **REFUSED_QUANTIZATIONS,
    "marlin": "These weights are stored in the layout of Marlin's kernel for NVIDIA GPUs. Use the GPTQ checkpoint that "
    "they were made from; Quire runs it with the same kernels under any name.",
}
