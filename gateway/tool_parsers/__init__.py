"""Formats of tool calls, with parsers that turn content into calls, and the names by which operators choose them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

# Name → module:class.
TOOL_PARSERS: Mapping[str, str] = MappingProxyType(
    {
        name: f"gateway.tool_parsers.{parser}"
        for name, parser in {
            "deepseek_v3": "token_blocks:DeepSeekV3",
            "deepseek_v31": "token_blocks:DeepSeekV31",
            "gigachat3": "tagged_json:GigaChat3",
            "glm45": "key_value_pairs:KeyValueParser",
            "glm47": "key_value_pairs:Glm47",
            "glm4_moe": "key_value_pairs:KeyValueParser",
            "granite": "json_lists:Granite",
            "granite-20b-fc": "tagged_json:Granite20bFunctionCalling",
            "hermes": "tagged_json:Hermes",
            "hunyuan_a13b": "json_lists:TaggedListParser",
            "internlm": "tagged_json:InternLm",
            "jamba": "json_lists:TaggedListParser",
            "kimi_k2": "token_blocks:KimiK2",
            "llama3_json": "plain_json:LlamaJson",
            "llama4_json": "plain_json:LlamaJson",
            "llama4_pythonic": "python_calls:Llama4Python",
            "minimax": "tagged_json:MiniMax",
            "minimax_m1": "tagged_json:MiniMax",
            "mistral": "mistral:Mistral",
            "olmo3": "python_calls:Olmo3",
            "phi4_mini_json": "json_lists:Phi4Mini",
            "pythonic": "python_calls:PythonCallParser",
            "qwen": "tagged_json:Hermes",
            "qwen3_coder": "xml_parameters:XmlParameterParser",
            "step3p5": "xml_parameters:XmlParameterParser",
            "xlam": "json_lists:XLam",
        }.items()
    }
)
