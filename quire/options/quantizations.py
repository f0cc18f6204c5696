"""Further names of quantization methods: aliases of supported methods, and names that are refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

# Name → methods here that read what other servers call so.
QUANTIZATION_ALIASES: Mapping[str, Sequence[str]] = {
    "awq_marlin": ("awq",), "gptq_marlin": ("gptq",), "gptqmodel": ("gptq",), "marlin": ("gptq", "awq"),
    "ipex": ("awq", "gptq"), "intel/auto-round": ("auto-round",),
    "tpu_int8": ("int8",), "neuron_quant": ("int8",), "modelopt_fp4": ("modelopt",), "modelopt_fp8": ("modelopt",),
}  # fmt: skip

# Name → why it is refused, and what to use instead.
REFUSED_QUANTIZATIONS: Mapping[str, str] = {
    "aqlm": "AQLM's weights are sums of vectors from learned codebooks, which no kernel here multiplies with. Take the "
    "model quantized by AWQ or GPTQ, or its 16-bit checkpoint with --quantization int4.",
    "deepspeedfp": "DeepSpeed's floating-point numbers of 6, 8 and 12 bits are made by its own CUDA library, from "
    "16-bit weights as they load. Take the model's 16-bit checkpoint, without quantization_config in config.json, and "
    "--quantization fp8.",
    "gptq_marlin_24": "These weights are sparse (two of four) and lie as Marlin's 2:4 kernel for NVIDIA GPUs reads "
    "them. Take a GPTQ checkpoint without sparsity.",
    "qqq": "QQQ's weights of 4 bits lie as its kernel for NVIDIA GPUs reads them, which multiplies them with inputs of "
    "8 bits. Take a GPTQ or AWQ checkpoint of 4 bits.",
    "squeezellm": "SqueezeLLM's weights are looked up in a table of each output's own, which no kernel here does. Take "
    "the model quantized by AWQ or GPTQ, or its 16-bit checkpoint with --quantization int4.",
}

# The same for checkpoints, one of whose methods has a name that means more as an option.
REFUSED_CHECKPOINTS: Mapping[str, str] = {
    **REFUSED_QUANTIZATIONS,
    "marlin": "These weights lie as Marlin's kernel for NVIDIA GPUs reads them. Take the GPTQ checkpoint that they "
    "were made of, which runs by the same kernels here as under any name.",
}
