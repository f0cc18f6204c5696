"""`smg`, a gateway with a router, in front of `quire serve --grpc`: chats and streams through both."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import openai
import pytest

SECONDS = 60
QUIRE = httpx.URL(os.environ["OPENAI_BASE_URL"])
SUM = [{"role": "user", "content": "What is 17 + 25?"}]


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


def wait_for_model(url: str, gateway: subprocess.Popen[bytes]) -> str:
    """Waits until the gateway knows Quire; returns the name of its model."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        assert gateway.poll() is None, "smg has ended"
        try:
            models = httpx.get(f"{url}/v1/models", timeout=2).json().get("data", ())
        except (httpx.HTTPError, ValueError):
            models = ()
        if models and models[0]["id"] != "unknown":
            return str(models[0]["id"])
        time.sleep(0.2)
    raise AssertionError("smg does not know Quire")


def chats(client: openai.OpenAI, model: str) -> None:
    answer = client.chat.completions.create(model=model, messages=SUM, temperature=0, max_tokens=64)
    assert answer.choices[0].message.content == "17 + 25 = 42."
    assert answer.choices[0].finish_reason == "stop"
    with client.chat.completions.create(
        model=model, messages=SUM, temperature=0, max_tokens=64, stream=True, stream_options={"include_usage": True}
    ) as stream:
        chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "17 + 25 = 42."
    assert answer.usage.completion_tokens == chunks[-1].usage.completion_tokens


def choices_with_logprobs(client: openai.OpenAI, model: str) -> None:
    answer = client.chat.completions.create(
        model=model, messages=SUM, n=2, seed=1, temperature=0.5, max_tokens=8, logprobs=True, top_logprobs=2
    )
    assert len(answer.choices) == 2
    assert len(answer.choices[0].logprobs.content[0].top_logprobs) == 2


def stops_and_schemas(client: openai.OpenAI, model: str) -> None:
    answer = client.chat.completions.create(model=model, messages=SUM, temperature=0, stop=[" ="], max_tokens=64)
    assert answer.choices[0].message.content == "17 + 25"
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    answer = client.chat.completions.create(
        model=model, messages=SUM, temperature=0, max_tokens=64,
        response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": schema}},
    )  # fmt: skip
    assert (answer.choices[0].message.content or "").startswith("{")


def errors(client: openai.OpenAI, model: str) -> None:
    with pytest.raises(openai.BadRequestError, match="maximum context length"):
        client.chat.completions.create(model=model, messages=[{"role": "user", "content": "x" * 20_000}])


def main() -> None:
    port = free_port()
    command = [str(Path(sys.executable).with_name("smg")), "launch", "--host", "127.0.0.1", "--port", str(port)]
    gateway = subprocess.Popen([*command, "--worker-urls", f"grpc://{QUIRE.host}:{QUIRE.port}"])
    try:
        url = f"http://127.0.0.1:{port}"
        model = wait_for_model(url, gateway)
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0, timeout=SECONDS)
        for check in (chats, choices_with_logprobs, stops_and_schemas, errors):
            check(client, model)
    finally:
        gateway.send_signal(signal.SIGTERM)
        try:
            gateway.wait(10)
        except subprocess.TimeoutExpired:
            gateway.kill()


if __name__ == "__main__":
    main()
