"""Formats of tool calls, with parsers that turn content into calls, and the names by which operators choose them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

# Name → module:class.
TOOL_PARSERS: Mapping[str, str] = MappingProxyType(
    {
        name: f"gateway.tool_parsers.{parser}"
        for name, parser in {
            "apertus": "json_lists:Apertus",
            "cohere_command3": "json_lists:Cohere",
            "cohere_command4": "json_lists:Cohere",
            "deepseek_v3": "token_blocks:DeepSeekV3",
            "deepseek_v31": "token_blocks:DeepSeekV31",
            "deepseek_v32": "invocations:DeepSeekV32",
            "deepseek_v4": "invocations:DeepSeekV4",
            "deepseek_v41": "invocations:DeepSeekV41",
            "ernie45": "tagged_json:Hermes",
            "functiongemma": "marked_values:FunctionGemma",
            "gemma4": "marked_values:Gemma4",
            "gigachat3": "tagged_json:GigaChat3",
            "glm45": "key_value_pairs:KeyValueParser",
            "glm47": "key_value_pairs:Glm47",
            "glm4_moe": "key_value_pairs:KeyValueParser",
            "granite": "json_lists:Granite",
            "granite-20b-fc": "tagged_json:Granite20bFunctionCalling",
            "granite4": "tagged_json:Hermes",
            "hermes": "tagged_json:Hermes",
            "hunyuan_a13b": "json_lists:TaggedListParser",
            "hy_v3": "key_value_pairs:Hunyuan3",
            "hy_v4": "key_value_pairs:Hunyuan4",
            "internlm": "tagged_json:InternLm",
            "jamba": "json_lists:TaggedListParser",
            "kimi_k2": "token_blocks:KimiK2",
            "kimi_k3": "invocations:KimiK3",
            "lfm2": "python_calls:Lfm2",
            "ling3": "key_value_pairs:Glm47",
            "llama3_json": "plain_json:LlamaJson",
            "llama4_json": "plain_json:LlamaJson",
            "llama4_pythonic": "python_calls:Llama4Python",
            "longcat": "tagged_json:LongCat",
            "mimo": "xml_parameters:XmlParameterParser",
            "minicpm5": "invocations:MiniCpm5",
            "minimax": "tagged_json:MiniMax",
            "minimax_m1": "tagged_json:MiniMax",
            "minimax_m2": "invocations:MiniMaxM2",
            "minimax_m3": "nested_elements:MiniMaxM3",
            "mistral": "mistral:Mistral",
            "nemotron_json": "json_lists:Nemotron",
            "olmo3": "python_calls:Olmo3",
            "phi4_mini_json": "json_lists:Phi4Mini",
            "poolside_v1": "key_value_pairs:KeyValueParser",
            "pythonic": "python_calls:PythonCallParser",
            "qwen": "tagged_json:Hermes",
            "qwen3_coder": "xml_parameters:XmlParameterParser",
            "qwen3_xml": "xml_parameters:XmlParameterParser",
            "seed_oss": "xml_parameters:SeedOss",
            "solar_open2": "key_value_pairs:SolarOpen2",
            "step3": "invocations:Step3",
            "step3p5": "xml_parameters:XmlParameterParser",
            "xlam": "json_lists:XLam",
        }.items()
    }
)
