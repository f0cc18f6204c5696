"""`quire chat` and `quire complete`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

import click

from quire.client.api import Api
from quire.client.typed import history_file, kept_history, typed_lines

T = TypeVar("T")
_KEYS = ("QUIRE_API_KEY", "VLLM_API_KEY", "OPENAI_API_KEY")

_HELP = (
    "/system TEXT sets the system prompt, /clear forgets the conversation, /bye exits; triple quotes enclose "
    "multi-line text. Ctrl-C stops an answer."
)


def _client_options(function: Callable[..., None]) -> Callable[..., None]:
    for decorate in (
        click.option("-q", "--quick", metavar="TEXT", help="Sends one message, prints the answer and exits."),
        click.option("--max-tokens", type=click.IntRange(1), help="Maximum number of tokens per answer."),
        click.option(
            "--api-key", envvar=["QUIRE_API_KEY", "VLLM_API_KEY", "OPENAI_API_KEY"], help="API key of the server."
        ),
        click.option("--model-name", help="Name of the model. Default: the first one that the server lists."),
        click.option(
            "--url",
            default="http://localhost:8000/v1",
            show_default=True,
            help="Base URL of the server; unix:PATH for a server with --uds.",
        ),
    ):
        function = decorate(function)
    return function


@click.command()
@_client_options
@click.option("--system-prompt", help="System prompt of the conversation.")
def chat(
    url: str, model_name: str | None, api_key: str | None, max_tokens: int | None, quick: str | None,
    system_prompt: str | None,
) -> None:  # fmt: skip
    """Chats with a running server."""
    api = Api(url, api_key)
    body: dict[str, Any] = {"model": model_name or api.first_model()}
    if max_tokens:
        body["max_tokens"] = max_tokens
    messages: list[dict[str, str]] = [{"role": "system", "content": system_prompt}] if system_prompt else []
    if quick is not None:
        _ask(api, body, messages, quick)
        return
    click.echo(_HELP)
    with kept_history(history_file()):
        for text in typed_lines():
            command, _, argument = text.partition(" ")
            if command == "/bye":
                return
            if command == "/clear":
                messages = [message for message in messages if message["role"] == "system"]
            elif command == "/system":
                messages = [{"role": "system", "content": argument}, *(m for m in messages if m["role"] != "system")]
            else:
                messages = _going_on(partial(_ask, api, body, messages, text)) or messages


@click.command()
@_client_options
def complete(url: str, model_name: str | None, api_key: str | None, max_tokens: int | None, quick: str | None) -> None:
    """Sends prompts to a running server and prints their continuations."""
    api = Api(url, api_key)
    body: dict[str, Any] = {"model": model_name or api.first_model(), "max_tokens": max_tokens or 64}

    def go_on(prompt: str) -> str:
        return _print_stream(choice["text"] for choice in api.stream("/completions", {**body, "prompt": prompt}))

    if quick is not None:
        go_on(quick)
        return
    with kept_history(history_file()):
        for prompt in typed_lines():
            _going_on(partial(go_on, prompt))


def _ask(api: Api, body: dict[str, Any], messages: list[dict[str, str]], text: str) -> list[dict[str, str]]:
    """Sends a message and prints the answer; returns the conversation including both."""
    asked = [*messages, {"role": "user", "content": text}]
    answer = _print_stream(_contents(api.stream("/chat/completions", {**body, "messages": asked})))
    return [*asked, {"role": "assistant", "content": answer}]


def _going_on(call: Callable[[], T]) -> T | None:
    """Calls and returns the result; None if the server refuses, which ends the request but not the program."""
    try:
        return call()
    except click.ClickException as error:
        error.show()
        return None


def _contents(choices: Iterator[dict[str, Any]]) -> Iterator[str]:
    """Yields the pieces of an answer; reasoning and tool calls are shown on standard error."""
    aside = False
    for choice in choices:
        delta = choice["delta"]
        if beside := (delta.get("reasoning") or "") + "".join(map(_call, delta.get("tool_calls") or ())):
            click.secho(beside, nl=False, dim=True, err=True)
            aside = True
        if content := delta.get("content"):
            if aside:
                click.echo("\n", err=True)
            aside = False
            yield content


def _call(call: dict[str, Any]) -> str:
    """Formats a piece of a tool call: its name comes first, its arguments bit by bit."""
    function = call.get("function") or {}
    name = function.get("name")
    return (f"\ncalls {name}: " if name else "") + (function.get("arguments") or "")


def _print_stream(pieces: Iterator[str]) -> str:
    """Prints pieces as they arrive; returns them joined. Ctrl-C stops the answer, keeping what has arrived."""
    printed = []
    try:
        for piece in pieces:
            click.echo(piece, nl=False)
            printed.append(piece)
    except KeyboardInterrupt:
        click.secho(" (stopped)", dim=True, nl=False, err=True)
    click.echo()
    return "".join(printed)
