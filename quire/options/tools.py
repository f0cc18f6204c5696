"""Options for tool calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from quire.errors import StartupError
from quire.options.base import option
from quire.options.reasoning import PARSERS_OF_CALLS_TOO

HARMONY_CALLS = "openai"  # vLLM's name of the format that PARSERS_OF_CALLS_TOO read


@dataclass(frozen=True)
class ToolOptions:
    """Tool calling."""

    group: ClassVar[str] = "Frontend"

    tool_call_parser: str | None = option(
        None, "Format of the model's tool calls, such as hermes, llama3_json, mistral, pythonic or qwen3_coder; "
        "docs/tools.md lists all names and the models that they are for. Names registered by a plugin are accepted "
        "too.",
    )  # fmt: skip
    tool_parser_plugin: str = option(
        "", "Python file that registers additional tool call parsers; see docs/tools.md.", metavar="FILE"
    )
    enable_auto_tool_choice: bool = option(
        False, "Lets the model decide whether to call tools, for `tool_choice: auto` and for tools without a "
        "tool_choice; needs --tool-call-parser.",
    )  # fmt: skip
    strict_tool_calls: bool = option(
        False, "Makes the calls of all tools fit their schemas. Calls that are required or named, and those of tools "
        "with `strict: true`, always do. For models that write arguments as JSON.",
    )  # fmt: skip
    exclude_tools_when_tool_choice_none: bool = option(
        False, "Leaves tools out of the prompt if `tool_choice` is none. Otherwise, the model still sees them, and the "
        "cached prompt can be reused.",
    )  # fmt: skip

    def check(self, reasoning_parser: str) -> None:
        """Checks that tool calls can be parsed if the model may make them.

        Args:
            reasoning_parser: empty for none.

        Raises:
            StartupError: the model may choose to call tools, but no parser is set for its calls.
        """
        if self.tool_call_parser == HARMONY_CALLS and reasoning_parser not in PARSERS_OF_CALLS_TOO:
            raise StartupError(
                f"--tool-call-parser {HARMONY_CALLS}: gpt-oss writes calls in the format of its reasoning. Set "
                f"--reasoning-parser {PARSERS_OF_CALLS_TOO[0]}, which reads both."
            )
        if self.enable_auto_tool_choice and not self.tool_call_parser and reasoning_parser not in PARSERS_OF_CALLS_TOO:
            raise StartupError(
                "--enable-auto-tool-choice needs --tool-call-parser, the format of the model's tool calls; see "
                "docs/tools.md."
            )
