"""Options for separating models' reasoning from their answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec

from quire.errors import StartupError
from quire.options.base import option
from quire.options.structured_outputs import structured_outputs_config_option

REASONING_PARSERS = (
    "cohere_command3", "cohere_command4", "deepseek_r1", "deepseek_v3", "deepseek_v4", "deepseek_v41", "ernie45",
    "gemma4", "glm4_moe", "glm45", "glm47", "granite", "holo2", "hunyuan_a13b", "hy_v3", "hy_v4", "kimi_k2", "kimi_k3",
    "ling3", "mimo", "minimax_m2", "minimax_m2_append_think", "minimax_m3", "mistral", "nemotron_v3", "olmo3",
    "openai_gptoss", "poolside_v1", "qwen3", "seed_oss", "solar_open2", "step3", "step3p5",
)  # fmt: skip
PARSERS_OF_CALLS_TOO = ("openai_gptoss",)  # Harmony has a channel for tool calls
# Efforts that requests may ask for; templates use those they know.
REASONING_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_DEFAULT_EFFORT = "medium"


class ReasoningConfig(msgspec.Struct, frozen=True):
    """Keys of --reasoning-config."""

    reasoning_parser: str = ""
    reasoning_start_str: str = ""
    reasoning_end_str: str = ""


@dataclass(frozen=True)
class ReasoningOptions:
    """Reasoning."""

    group: ClassVar[str] = "StructuredOutputsConfig"

    reasoning_parser: str = option(
        "", "Format in which the model marks its reasoning, which is returned as `reasoning` beside the `content` of "
        "chat completions; see docs/reasoning.md. Empty for models that do not reason. Names registered by a plugin "
        "are accepted too.",
        metavar=f"[{'|'.join(REASONING_PARSERS)}]",
    )  # fmt: skip
    reasoning_parser_plugin: str = option(
        "", "Python file that registers additional reasoning parsers; see docs/reasoning.md.", metavar="FILE"
    )
    enable_reasoning: bool | None = option(None, "Deprecated: --reasoning-parser implies it.")
    reasoning_effort: str | None = option(
        None, "Reasoning effort if a request does not set one, for models whose chat template supports "
        "`reasoning_effort`. Empty leaves it to the template. Default: medium, or the model's own if it is known to "
        "have only other efforts.",
        choices=("", "low", "medium", "high"), metavar="[low|medium|high]",
    )  # fmt: skip

    reasoning_config: dict[str, Any] = option(
        {}, "Settings of reasoning as JSON, or key by key. Keys: reasoning_parser (same as --reasoning-parser), "
        "reasoning_end_str (what ends the thinking once a thinking_token_budget is used up: any text, then the "
        "parser's closing mark, which alone is the default) and reasoning_start_str (the parser's opening mark).",
        schema=ReasoningConfig,
    )  # fmt: skip
    structured_outputs_config: dict[str, Any] = structured_outputs_config_option()

    @property
    def parser(self) -> str:
        """The chosen parser, whichever flag it was given by; empty for none."""
        return self.reasoning_parser or next(iter(self._configured.values()), "")

    @property
    def _configured(self) -> dict[str, str]:
        """The parsers that configurations name, by their flags."""
        given = {
            "--structured-outputs-config": self.structured_outputs_config, "--reasoning-config": self.reasoning_config,
        }  # fmt: skip
        return {flag: str(name) for flag, config in given.items() if (name := config.get("reasoning_parser"))}

    @property
    def reasoning_strings(self) -> tuple[str, str]:
        """What opens the reasoning, and what ends it once a budget is used up; empty for the parser's marks."""
        config = msgspec.convert(self.reasoning_config, ReasoningConfig)
        return config.reasoning_start_str, config.reasoning_end_str

    @property
    def plugin(self) -> str:
        """The file with additional parsers, whichever flag it was given by; empty for none."""
        return self.reasoning_parser_plugin or str(self.structured_outputs_config.get("reasoning_parser_plugin", ""))

    @property
    def default_effort(self) -> str:
        """The effort where neither the request nor the operator sets one; empty if the operator does."""
        return _DEFAULT_EFFORT if self.reasoning_effort is None else ""

    @property
    def constrains_thinking(self) -> bool:
        """Whether constraints apply to the reasoning too, instead of only after it."""
        return bool(self.structured_outputs_config.get("enable_in_reasoning"))

    def check(self) -> None:
        """Checks that the options are consistent.

        Raises:
            StartupError: reasoning is enabled without a parser, or disabled with one; or two flags name different
                parsers, or an unknown one where no plugin may add it.
        """
        for flag, named in self._configured.items():
            if named != self.parser:
                raise StartupError(
                    f"{flag} has the reasoning_parser {named!r} and --reasoning-parser is {self.parser!r}: leave one "
                    "of them out."
                )
        if not self.plugin and self.parser not in ("", *REASONING_PARSERS):
            raise StartupError(
                f"--reasoning-parser {self.parser} does not exist. Choose one of {', '.join(REASONING_PARSERS)}, or "
                "add one with --reasoning-parser-plugin."
            )
        if self.enable_reasoning is not None and self.enable_reasoning != bool(self.parser):
            raise StartupError(
                "--enable-reasoning is deprecated and follows from --reasoning-parser, which is "
                f"{self.parser or 'not set'}: leave it out"
                + ("." if self.parser else f", and choose one of {', '.join(REASONING_PARSERS)}.")
            )
