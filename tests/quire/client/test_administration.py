"""`quire workers drain` and similar commands, against the admin port of a gateway with two engines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio
from click.testing import CliRunner, Result

from quire.cli import cli
from tests.support.admin_stack import AdminStack, admin_options, running_admin_stack
from tests.support.engine_process import free_port

pytestmark = pytest.mark.asyncio(loop_scope="module")
Run = Callable[..., Awaitable[Result]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[AdminStack]:
    async with running_admin_stack(tmp_path_factory.mktemp("tokenizer"), admin=admin_options("sesame")) as running:
        yield running


@pytest.fixture
def run(stack: AdminStack) -> Run:
    async def run(*words: str, key: str = "sesame") -> Result:
        arguments = ["workers", *words, "--admin-url", f"http://127.0.0.1:{stack.admin_port}"]
        return await asyncio.to_thread(CliRunner().invoke, cli, arguments, env={"QUIRE_ADMIN_API_KEY": key})

    return run


def states(result: Result) -> dict[str, str]:
    assert result.exit_code == 0, result.output
    header, *rows = (line.split(maxsplit=1) for line in result.stdout.splitlines())
    assert header == ["WORKER", "STATE"]
    return {worker: state.strip() for worker, state in rows}


async def test_one_worker_is_taken_out_of_service_and_put_back(stack: AdminStack, run: Run) -> None:
    worker = stack.workers[0]
    assert states(await run("drain", worker)) == {worker: "draining"}
    assert states(await run("undrain", worker)) == {worker: "in service"}


@pytest.mark.parametrize(
    ("words", "state", "back"),
    [(("pause", "--mode", "keep"), "paused", "resume"), (("sleep",), "asleep (level 1)", "wake"),
     (("sleep", "--level", "2", "--mode", "wait"), "asleep (level 2)", "wake")],
)  # fmt: skip
async def test_all_are_meant_where_none_is_named(
    stack: AdminStack, run: Run, words: tuple[str, ...], state: str, back: str
) -> None:
    assert states(await run(*words)) == dict.fromkeys(stack.workers, state)
    assert states(await run(back)) == dict.fromkeys(stack.workers, "in service")


async def test_what_goes_wrong_is_said(run: Run) -> None:
    for words, key, said in (
        (("drain",), "sesame", "Missing argument 'WORKER...'"),
        (("drain", "127.0.0.1:1"), "sesame", "127.0.0.1:1"),
        (("sleep", "--level", "3"), "sesame", "'--level'"),
        (("resume",), "wrong", "401"),
    ):
        result = await run(*words, key=key)
        assert (result.exit_code != 0, said in result.output) == (True, True), result.output


async def test_without_an_admin_port_it_says_how_to_get_one() -> None:
    result = CliRunner().invoke(cli, ["workers", "resume", "--admin-url", f"http://127.0.0.1:{free_port()}"])
    assert result.exit_code == 1
    assert "--admin-port 8100" in result.output


async def test_the_list_needs_no_name() -> None:
    named, plain = (CliRunner().invoke(cli, ["workers", *words, "--show-config"]) for words in (["list"], []))
    assert named.output == plain.output
    assert "router-address" in named.output
    listed = CliRunner().invoke(cli, ["workers", "--help"]).output
    assert all(name in listed for name in ("list", "drain", "undrain", "pause", "resume", "sleep", "wake"))
