"""All forms of `--help`, on `quire serve`."""

from __future__ import annotations

import subprocess
import sys

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from quire.cli import cli
from quire.options.vllm.flags import vllm_flags


def shown(word: str = "", command: str = "serve") -> str:
    result = CliRunner().invoke(cli, [command, f"--help={word}" if word else "--help"])
    assert result.exit_code == 0, result.output
    return result.output


def flat(text: str) -> str:
    return " ".join(text.split())


def test_groups_are_listed_by_vllms_names() -> None:
    names = {line.split()[0] for line in shown("listgroup").splitlines()}
    assert {flag.group for flag in vllm_flags().values() if flag.current} - names == {"AttentionConfig"}
    assert "KernelConfig" in names


@pytest.mark.parametrize("word", ["SchedulerConfig", "schedulerconfig"])
def test_a_group(word: str) -> None:
    text = shown(word)
    assert "--max-num-seqs" in text
    assert "--scheduler-cls" in text
    assert "--max-logprobs" not in text


@pytest.mark.parametrize("word", ["max-num-seqs", "MAX-NUM-SEQS", "max_num_seqs"])
def test_one_flag(word: str) -> None:
    assert flat(shown(word)) == (
        "SchedulerConfig: Scheduling --max-num-seqs INTEGER Maximum number of sequences running at once. "
        "Default: 256, or fewer if memory does not hold the states of recurrent layers for so many. "
        "[env: QUIRE_MAX_NUM_SEQS]"
    )


def test_one_flag_by_its_short_name_and_with_all_its_variables() -> None:
    assert "-tp, --tensor-parallel-size INTEGER" in flat(shown("tp"))
    assert "-dcp, --decode-context-parallel-size INTEGER" in flat(shown("dcp"))
    assert "--tool-server Not an option of Quire. Quire does not run tools" in flat(shown("tool-server"))
    assert "[env: QUIRE_LOG_LEVEL, VLLM_LOGGING_LEVEL]" in flat(shown("log-level"))
    assert "(DEPRECATED in vLLM)" in flat(shown("num-speculative-tokens"))


def test_a_word() -> None:
    text = shown("preempted")
    assert "--swap-space" in text
    assert "--port" not in text


def test_a_word_that_is_nowhere_names_the_nearest() -> None:
    assert "No option contains 'max-num-seqx'. Did you mean max-num-seqs?" in shown("max-num-seqx")


def test_all_has_what_quire_lacks_as_well() -> None:
    assert "--override-neuron-config" in shown("all")
    assert "--override-neuron-config" not in shown()
    assert shown("page").strip() == shown().strip()  # no terminal, no pager


def test_a_commands_own_default_is_shown() -> None:
    assert "[default: 50051]" in shown("port", "router")


def test_nothing_is_said_of_the_environment() -> None:
    result = CliRunner().invoke(cli, ["serve", "--help=port"], env={"VLLM_USE_V1": "1", "QUIRE_TASK": "embed"})
    assert (result.exit_code, result.stderr) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "incomplete", "expected"),
    [
        ([], "se", ["serve"]),
        (["serve"], "--max-num-s", ["--max-num-seqs"]),
        (["serve"], "--help=sched", ["SchedulerConfig", "scheduling-policy"]),
        (["serve", "--scheduling-policy"], "", ["fcfs", "priority"]),
        (["serve"], "--scheduling-policy=p", ["priority"]),
    ],
)
def test_shells_complete(arguments: list[str], incomplete: str, expected: list[str]) -> None:
    completions = ShellComplete(cli, {}, "quire", "_QUIRE_COMPLETE").get_completions(arguments, incomplete)
    assert [item.value for item in completions] == expected


def test_help_loads_nothing_that_is_slow() -> None:
    code = "import sys, quire.cli; sys.exit(bool({'grpc', 'yaml', 'asyncio', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
