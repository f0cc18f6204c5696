"""`quire chat` and `quire complete`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import click

from quire.client.api import Api

_HELP = (
    '/system TEXT sets the system prompt, /clear forgets the conversation, /bye ends; """ begins and ends many lines.'
)


def _client_options(function: Callable[..., None]) -> Callable[..., None]:
    for decorate in (
        click.option("-q", "--quick", metavar="TEXT", help="Sends one message, prints the answer and exits."),
        click.option("--max-tokens", type=click.IntRange(1), help="Most tokens of an answer."),
        click.option("--api-key", envvar=["QUIRE_API_KEY", "OPENAI_API_KEY"], help="Key of the server."),
        click.option("--model-name", help="Model to ask; the first one the server lists when unset."),
        click.option("--url", default="http://localhost:8000/v1", show_default=True, help="Base URL of the server."),
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
    """Talks to a running server."""
    api = Api(url, api_key)
    body: dict[str, Any] = {"model": model_name or api.first_model()}
    if max_tokens:
        body["max_tokens"] = max_tokens
    messages: list[dict[str, str]] = [{"role": "system", "content": system_prompt}] if system_prompt else []
    if quick is None:
        click.echo(_HELP)
    for text in [quick] if quick is not None else _typed_lines():
        command, _, argument = text.partition(" ")
        if command == "/bye":
            return
        if command == "/clear":
            messages = [message for message in messages if message["role"] == "system"]
        elif command == "/system":
            messages = [{"role": "system", "content": argument}, *(m for m in messages if m["role"] != "system")]
        else:
            messages.append({"role": "user", "content": text})
            answer = _print_stream(_contents(api.stream("/chat/completions", {**body, "messages": messages})))
            messages.append({"role": "assistant", "content": answer})


@click.command()
@_client_options
def complete(url: str, model_name: str | None, api_key: str | None, max_tokens: int | None, quick: str | None) -> None:
    """Sends prompts to a running server and prints how they go on."""
    api = Api(url, api_key)
    body: dict[str, Any] = {"model": model_name or api.first_model(), "max_tokens": max_tokens or 64}
    for prompt in [quick] if quick is not None else _typed_lines():
        _print_stream(choice["text"] for choice in api.stream("/completions", {**body, "prompt": prompt}))


def _typed_lines() -> Iterator[str]:
    """What the user types, until end of file; triple quotes enclose text of many lines."""
    while True:
        try:
            line = input("> ")
            if line.startswith('"""'):
                lines = [line[3:]]
                while not lines[-1].endswith('"""'):
                    lines.append(input(". "))
                line = "\n".join(lines)[:-3]
        except EOFError:
            return
        if line.strip():
            yield line


def _contents(choices: Iterator[dict[str, Any]]) -> Iterator[str]:
    """The pieces of an answer; what the model thinks first is shown on the side."""
    thinks = False
    for choice in choices:
        if reasoning := choice["delta"].get("reasoning"):
            click.secho(reasoning, nl=False, dim=True, err=True)
            thinks = True
        if content := choice["delta"].get("content"):
            if thinks:
                click.echo("\n", err=True)
            thinks = False
            yield content


def _print_stream(pieces: Iterator[str]) -> str:
    """Prints pieces as they come; returns them joined."""
    printed = []
    for piece in pieces:
        click.echo(piece, nl=False)
        printed.append(piece)
    click.echo()
    return "".join(printed)
