"""`quire chat` without a server."""

from __future__ import annotations

import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from quire.cli import cli
from quire.client.api import Api
from quire.client.command import chat, complete
from quire.client.typed import kept_history


def test_what_a_model_thinks_is_shown_beside_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def stream(api: Api, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        deltas: list[dict[str, str]] = [
            {"role": "assistant", "content": ""}, {"reasoning": "I "}, {"reasoning": "add."}, {"content": "4"},
            {"content": "2"}, {},
        ]  # fmt: skip
        return ({"delta": delta} for delta in deltas)

    monkeypatch.setattr(Api, "stream", stream)
    result = CliRunner().invoke(chat, ["--model-name", "m", "--quick", "17 + 25?"])
    assert (result.exit_code, result.stdout, result.stderr) == (0, "42\n", "I add.\n\n")


@pytest.mark.parametrize(
    "url",
    ["notaurl", "", "http://[bad", "http://", "http://host:port", "http://host:99999", "http://a..b", "ftp://host"],
)
@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("--url", ("chat", "--model-name", "m")),
        ("--url", ("complete", "-q", "x")),
        ("--admin-url", ("workers", "pause")),
    ],
)
def test_an_address_that_is_none_is_named_in_one_line(url: str, flag: str, words: tuple[str, ...]) -> None:
    result = CliRunner().invoke(cli, [*words, flag, url])
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert f"{flag} {url or repr(url)}: expected an address such as http://" in line


def test_what_is_no_http_server_is_told_in_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def hang_up() -> None:
            listener.accept()[0].close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        result = CliRunner().invoke(cli, ["chat", "--url", f"http://127.0.0.1:{listener.getsockname()[1]}/v1"])
        thread.join()
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: No server answers at http://127.0.0.1:")


class Server:
    """Answers with deltas; raises a KeyboardInterrupt among them, as Ctrl-C does."""

    def __init__(self, *answers: list[Any]) -> None:
        self.answers = list(answers)
        self.asked: list[Any] = []

    def stream(self, api: Api, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        self.asked.append(body.get("messages") or body["prompt"])
        for delta in self.answers.pop(0):
            if isinstance(delta, BaseException):
                raise delta
            yield {"delta": delta, "text": delta.get("content")}


def talk(monkeypatch: pytest.MonkeyPatch, server: Server, typed: str, command: click.Command = chat) -> Result:
    monkeypatch.setattr(Api, "stream", lambda *arguments: server.stream(*arguments))
    return CliRunner().invoke(command, ["--model-name", "m"], input=typed)


def test_ctrl_c_stops_an_answer_and_not_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server([{"content": "so far"}, KeyboardInterrupt()], [{"content": "next"}])
    result = talk(monkeypatch, server, "one\ntwo\n")
    assert result.exit_code == 0, result.output
    assert "(stopped)" in result.stderr
    assert [message["content"] for message in server.asked[1]] == ["one", "so far", "two"]


def test_a_refusal_ends_a_request_and_not_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server([click.ClickException("too long")], [{"content": "fine"}])
    result = talk(monkeypatch, server, "one\ntwo\n")
    assert result.exit_code == 0, result.output
    assert "too long" in result.stderr
    assert [message["content"] for message in server.asked[1]] == ["two"]


def test_calls_of_tools_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [{"function": {"name": "add", "arguments": ""}}, {"function": {"arguments": '{"a": 1}'}}]
    result = talk(monkeypatch, Server([{"tool_calls": [call]} for call in calls]), "go\n")
    assert 'calls add: {"a": 1}' in result.stderr


def test_many_lines_and_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server([{"content": "A"}], [{"content": "B"}])
    talk(monkeypatch, server, '/system be brief\n"""one\ntwo"""\n/clear\nthree\n/bye\nfour\n')
    assert [[message["content"] for message in asked] for asked in server.asked] == [
        ["be brief", "one\ntwo"], ["be brief", "three"],
    ]  # fmt: skip


def test_completion_goes_on_after_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server([KeyboardInterrupt()], [{"content": "end"}])
    result = talk(monkeypatch, server, "one\ntwo\n", complete)
    assert (result.exit_code, server.asked) == (0, ["one", "two"])
    assert "end" in result.stdout


def test_lines_are_kept_for_the_next_session(tmp_path: Path) -> None:
    readline = pytest.importorskip("readline")
    file = tmp_path / "quire" / "history"
    readline.clear_history()
    with kept_history(file):
        readline.add_history("asked before")
    readline.clear_history()
    with kept_history(file):
        assert readline.get_history_item(1) == "asked before"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
