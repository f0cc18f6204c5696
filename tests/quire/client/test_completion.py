"""`quire completion`: the shell scripts, and the completions that they request."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from click.testing import CliRunner

from quire.cli import cli
from quire.client.completion import SHELLS


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_takes_the_script(shell: str) -> None:
    result = CliRunner().invoke(cli, ["completion", shell])
    assert result.exit_code == 0, result.output
    assert f"_QUIRE_COMPLETE={shell}_complete" in result.output
    if program := shutil.which(shell):
        checked = subprocess.run([program, "-n"], input=result.output, text=True, timeout=60, check=False)
        assert checked.returncode == 0


@pytest.mark.parametrize(
    ("words", "index", "answer"),
    [
        ("quire serve --max-num-s", 2, "plain,--max-num-seqs"),
        ("quire serve --help=sched", 2, "SchedulerConfig"),
        ("quire workers dr", 2, "plain,drain"),
        ("quire workers --wa", 2, "plain,--watch"),
    ],
)
def test_the_command_answers_a_shell(words: str, index: int, answer: str) -> None:
    environment = {"_QUIRE_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(index)}
    result = CliRunner().invoke(cli, env=environment, prog_name="quire")
    assert answer in result.output


def test_another_shell_is_refused() -> None:
    result = CliRunner().invoke(cli, ["completion", "csh"])
    assert result.exit_code == 2
    assert "'bash', 'zsh', 'fish'" in result.output
