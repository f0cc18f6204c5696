"""Ranks started by torchrun."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from engine_svc.executor.external import read_launch
from quire.errors import StartupError
from quire.options.executor import ExecutorOptions
from quire.options.parallel import ParallelOptions
from tests.support.engine_process import free_port
from tests.support.launched_ranks import COUNT, PROMPTS
from tests.support.tiny_models import make_model, reference_tokens
from tests.support.waiting import eventually_now

SECONDS = 120.0
ENVIRONMENT = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "4000"}


def options(secret: str | None = "secret", port: int = 0) -> ParallelOptions:
    return ParallelOptions(tensor_parallel_size=2, executor=ExecutorOptions(rank_secret=secret, rank_port=port))


def test_a_launch_is_read_from_what_torchrun_says() -> None:
    launch = read_launch(options(), ENVIRONMENT)
    assert (launch.rank, launch.local_rank, launch.address, launch.port) == (1, 1, "127.0.0.1", 4001)
    assert read_launch(options(port=7), ENVIRONMENT).port == 7


@pytest.mark.parametrize(
    ("environment", "secret", "why"),
    [
        ({}, "secret", "RANK is missing"),
        (ENVIRONMENT | {"MASTER_PORT": "x"}, "secret", "MASTER_PORT is 'x', not a number"),
        (ENVIRONMENT | {"MASTER_ADDR": ""}, "secret", "MASTER_ADDR is missing"),
        (ENVIRONMENT | {"WORLD_SIZE": "4"}, "secret", "4 ranks are launched, but the options describe 2"),
        (ENVIRONMENT, None, "needs --rank-secret"),
    ],
)
def test_a_launch_that_cannot_be_is_explained(environment: Mapping[str, str], secret: str | None, why: str) -> None:
    with pytest.raises(StartupError, match=why):
        read_launch(options(secret), environment)


@pytest.mark.slow
def test_two_ranks_of_torchrun_answer_as_one_and_none_outlives_another(tmp_path: Path) -> None:
    folder = make_model(tmp_path, "llama-untied")
    with launched(folder) as (torchrun, answers):
        pids = [int(pid) for pid in answers.pop(0).split()]
        expected = reference_tokens(folder, PROMPTS, COUNT)
        assert [[int(token) for token in answer.split()] for answer in answers] == expected
        os.kill(pids[1], signal.SIGKILL)  # rank 1, as torchrun started it
        assert torchrun.wait(SECONDS) != 0
        eventually_now(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "no rank is left", SECONDS)


@contextlib.contextmanager
def launched(folder: Path) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """Yields torchrun and the output of rank 0: a line with the ranks' process ids, then a line per answer."""
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--master-addr=127.0.0.1",
        f"--master-port={free_port()}", "-m", "tests.support.launched_ranks", str(folder),
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            yield process, [process.stdout.readline() for _ in range(1 + len(PROMPTS))]
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
