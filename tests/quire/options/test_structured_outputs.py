"""One configuration of structured output, whichever flags set it."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner

from quire.cli import cli
from quire.errors import StartupError
from quire.options.reasoning import ReasoningOptions
from quire.options.structured_outputs import StructuredOutputsOptions


def test_old_flags_say_the_same() -> None:
    assert StructuredOutputsOptions(guided_decoding_backend="guidance").chosen().backend == "guidance"
    options = StructuredOutputsOptions(
        structured_outputs_config={"backend": "guidance"}, guided_decoding_disable_fallback=True
    )
    assert (options.chosen().backend, options.chosen().disable_fallback) == ("guidance", True)


@pytest.mark.parametrize(
    "options",
    [
        {"structured_outputs_config": {"backend": "guidance"}, "guided_decoding_backend": "xgrammar"},
        {"structured_outputs_config": {"backend": "grammarian"}},
    ],
)
def test_flags_that_do_not_agree(options: dict[str, Any]) -> None:
    with pytest.raises(StartupError, match="--structured-outputs-config"):
        StructuredOutputsOptions(**options).chosen()


def test_the_gateway_reads_its_keys() -> None:
    options = ReasoningOptions(structured_outputs_config={"reasoning_parser": "qwen3", "enable_in_reasoning": True})
    options.check()
    assert (options.parser, options.constrains_thinking) == ("qwen3", True)
    assert (ReasoningOptions().parser, ReasoningOptions().constrains_thinking) == ("", False)


@pytest.mark.parametrize(
    ("flag", "key", "why"),
    [("glm45", "qwen3", "has the reasoning_parser 'qwen3' and"), ("", "qwen4", "qwen4 does not exist")],
)
def test_parsers_of_reasoning_that_do_not_agree_or_exist(flag: str, key: str, why: str) -> None:
    with pytest.raises(StartupError, match=why):
        ReasoningOptions(reasoning_parser=flag, structured_outputs_config={"reasoning_parser": key}).check()


@pytest.mark.parametrize(
    "given", [{"reasoning_parser_plugin": "f.py"}, {"structured_outputs_config": {"reasoning_parser_plugin": "f.py"}}]
)
def test_a_plugin_may_add_any_name(given: dict[str, Any]) -> None:
    options = ReasoningOptions(reasoning_parser="mine", **given)
    options.check()
    assert options.plugin == "f.py"


def test_an_old_flag_says_what_has_taken_its_place() -> None:
    result = CliRunner().invoke(cli, ["tokenizer", "--guided-decoding-backend", "guidance", "--port", "none"])
    assert "deprecated. Use --structured-outputs-config '{\"backend\": …}'" in result.stderr
