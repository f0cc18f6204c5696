"""Options of calls of tools."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from quire.options.base import option


@dataclass(frozen=True)
class ToolOptions:
    """Calls of tools."""

    group: ClassVar[str] = "Frontend"

    tool_call_parser: str | None = option(
        None, "How the model writes its calls of tools, such as hermes, llama3_json, mistral, pythonic or qwen3_coder; "
        "docs/tools.md has all names and the models that they are for. Names that a plugin registers are taken too.",
    )  # fmt: skip
    tool_parser_plugin: str = option(
        "", "Python file that registers further parsers of calls; see docs/tools.md.", metavar="FILE"
    )
