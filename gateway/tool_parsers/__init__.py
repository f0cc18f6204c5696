"""Formats of tool calls: a file each, with parsers that turn content into calls; and which family writes which."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

# Name → module:class.
TOOL_PARSERS: Mapping[str, str] = MappingProxyType(
    {
        name: f"gateway.tool_parsers.{parser}"
        for name, parser in {
            "hermes": "tagged_json:Hermes",
            "qwen": "tagged_json:Hermes",
            "granite-20b-fc": "tagged_json:Granite20bFunctionCalling",
            "internlm": "tagged_json:InternLm",
            "minimax": "tagged_json:MiniMax",
            "minimax_m1": "tagged_json:MiniMax",
            "gigachat3": "tagged_json:GigaChat3",
            "granite": "json_lists:Granite",
            "hunyuan_a13b": "json_lists:TaggedListParser",
            "jamba": "json_lists:TaggedListParser",
            "phi4_mini_json": "json_lists:Phi4Mini",
            "xlam": "json_lists:XLam",
            "llama3_json": "plain_json:LlamaJson",
            "llama4_json": "plain_json:LlamaJson",
        }.items()
    }
)
