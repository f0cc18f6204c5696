"""Options for tool calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from quire.errors import StartupError
from quire.options.base import option
from quire.options.reasoning import PARSERS_OF_CALLS_TOO


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
    enable_auto_tool_choice: bool = option(
        False, "Lets the model decide whether it calls tools, as `tool_choice: auto` asks for and tools without a "
        "choice do; needs --tool-call-parser.",
    )  # fmt: skip
    strict_tool_calls: bool = option(
        False, "Has the calls of all tools fit their schemas, as those of tools with `strict: true` and calls that are "
        "required or named always do; for models that write the arguments of calls as JSON.",
    )  # fmt: skip
    exclude_tools_when_tool_choice_none: bool = option(
        False, "Leaves tools out of the prompt where `tool_choice` is none. Otherwise the model knows of them, and the "
        "prompt stays the one that was cached.",
    )  # fmt: skip

    def check(self, reasoning_parser: str) -> None:
        """Checks that tool calls can be parsed if the model may make them.

        Args:
            reasoning_parser: empty for none.

        Raises:
            StartupError: the model may choose to call tools, but no parser is set for its calls.
        """
        if self.enable_auto_tool_choice and not self.tool_call_parser and reasoning_parser not in PARSERS_OF_CALLS_TOO:
            raise StartupError(
                "--enable-auto-tool-choice needs --tool-call-parser, which says how the model writes its calls; see "
                "docs/tools.md."
            )
