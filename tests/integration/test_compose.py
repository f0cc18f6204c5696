"""compose.yaml without Docker: every service from its own command, environment, ports and health check."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai
import pytest
import yaml

from quire.cli import COMMANDS
from tests.support.engine_process import free_port
from tests.support.waiting import WAIT_SECONDS

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
KEY, TOKEN = "sk-compose", "token-compose"
SERVICES = ("router", "tokenizer", "engine", "gateway")
PROFILES = {"engine": ["cpu"], "engine-gpu": ["gpu"], "engine-multi-gpu": ["multi-gpu"]}
PORTS = {"router": 50051, "tokenizer": 50052, "engine": 50053, "gateway": 8000}
METRICS_PORT = "9464"  # the router's


def compose(environment: dict[str, str]) -> dict[str, Any]:
    """compose.yaml with its ${NAME:-default} filled in."""

    def value(match: re.Match[str]) -> str:
        return environment.get(match[1]) or match[2]

    text = re.sub(r"\$\{(\w+):-([^}]*)\}", value, (ROOT / "compose.yaml").read_text())
    assert "${" not in text
    parsed: dict[str, Any] = yaml.safe_load(text)
    return parsed


def instructions(path: Path) -> list[tuple[str, str]]:
    """(instruction, rest of the line) for a Dockerfile."""
    text = re.sub(r"\\\n\s*", "", path.read_text())
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in text.splitlines()) if word.isupper()]


def dockerfile(service: dict[str, Any]) -> list[tuple[str, str]]:
    return instructions(ROOT / service["build"]["dockerfile"])


def last(found: list[tuple[str, str]], word: str) -> str:
    return [rest for instruction, rest in found if instruction == word][-1]


@dataclass
class Containers:
    """The services, run as local processes."""

    model: Path
    processes: dict[str, subprocess.Popen[str]] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=lambda: {name: free_port() for name in SERVICES})

    def local(self, argument: str) -> str:
        """A container's argument translated for this machine."""
        for name, port in PORTS.items():
            # The router finds engines through a host name that it resolves; here that is localhost.
            host = "localhost" if name == "engine" else "127.0.0.1"
            argument = argument.replace(f"{name}:{port}", f"{host}:{self.ports[name]}")
            argument = argument.replace(f"127.0.0.1:{port}", f"127.0.0.1:{self.ports[name]}")
        local = {"/model": str(self.model), "0.0.0.0": "127.0.0.1", METRICS_PORT: str(free_port())}
        return local.get(argument, argument)

    def start(self, name: str, service: dict[str, Any]) -> None:
        entrypoint = json.loads(last(dockerfile(service), "ENTRYPOINT"))
        assert entrypoint[0] == "quire"
        arguments = [self.local(argument) for argument in entrypoint[1:] + service["command"]]
        self.processes[name] = subprocess.Popen(
            [sys.executable, "-m", "quire", *arguments, "--port", str(self.ports[name])],
            cwd=ROOT, env=self.environment(service), stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def environment(self, service: dict[str, Any]) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), **service.get("environment", {})}

    def wait_healthy(self, name: str, service: dict[str, Any]) -> None:
        kind, *command = service["healthcheck"]["test"]
        assert kind == "CMD"
        assert command[0] == "python"
        command = [sys.executable, *map(self.local_check, command[1:])]
        deadline = time.monotonic() + 60
        while not self.listens(name) or subprocess.run(
            command, cwd=ROOT, env=self.environment(service), timeout=60
        ).returncode:  # fmt: skip
            assert self.processes[name].poll() is None, self.processes[name].communicate()[1]
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def listens(self, name: str) -> bool:
        """Whether a service has opened its port, before which no process has to be started to ask it."""
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.ports[name])) == 0

    def local_check(self, argument: str) -> str:
        return re.sub(r"127\.0\.0\.1:(\d+)", lambda match: f"127.0.0.1:{self.mapped(int(match[1]))}", argument)

    def mapped(self, port: int) -> int:
        return next(self.ports[name] for name, inside in PORTS.items() if inside == port)

    def stop(self) -> dict[str, int]:
        """Sends SIGTERM to all, the gateway first; returns their exit codes."""
        codes = {}
        for name in reversed(SERVICES):
            if process := self.processes.get(name):
                process.send_signal(signal.SIGTERM)
                process.communicate(timeout=60)
                codes[name] = process.returncode
        return codes


@contextmanager
def running(model: Path) -> Iterator[Containers]:
    services = compose({"QUIRE_API_KEY": KEY, "QUIRE_GRPC_TOKEN": TOKEN, "QUIRE_MODEL_NAME": "tiny"})["services"]
    containers = Containers(model)
    try:
        for name in SERVICES:
            containers.start(name, services[name])
        for name in SERVICES:
            containers.wait_healthy(name, services[name])
        yield containers
    finally:
        codes = containers.stop()
    assert codes == dict.fromkeys(SERVICES, 0)


def test_a_chat_through_the_services_of_compose(tiny_llama: Path) -> None:
    with running(tiny_llama) as containers:
        url = f"http://127.0.0.1:{containers.ports['gateway']}"
        wait_ready(f"{url}/health")
        client = openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0, timeout=60)
        messages: Any = [{"role": "user", "content": "Hello"}]
        whole = client.chat.completions.create(model="tiny", messages=messages, max_tokens=8, temperature=0)
        stream = client.chat.completions.create(
            model="tiny", messages=messages, max_tokens=8, temperature=0, stream=True
        )
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        assert text == whole.choices[0].message.content
        with pytest.raises(openai.AuthenticationError):
            client.with_options(api_key="wrong").models.list()
        client.close()


def wait_ready(url: str) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(url, timeout=WAIT_SECONDS):
                return
        except urllib.error.HTTPError as error:
            error.close()
            assert time.monotonic() < deadline
            time.sleep(0.1)


@pytest.mark.parametrize("name", [*SERVICES, "engine-gpu", "engine-multi-gpu"])
def test_what_compose_promises(name: str) -> None:
    parsed = compose({})
    service = parsed["services"][name]
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    assert ("ports" in service) == (name == "gateway")
    assert service.get("profiles") == PROFILES.get(name)
    assert parsed["networks"]["quire"]["internal"]
    assert "COMPOSE_PROFILES=cpu" in (ROOT / ".env").read_text()
    # --help after the options ends the command before it does anything, but only if they parse.
    entrypoint = service.get("entrypoint") or json.loads(last(dockerfile(service), "ENTRYPOINT"))
    command = COMMANDS[entrypoint[1]]()
    with pytest.raises(SystemExit) as ended:
        command.main([*service["command"], "--help"])
    assert ended.value.code == 0


def test_only_the_loopback_address_is_published() -> None:
    assert compose({})["services"]["gateway"]["ports"] == ["127.0.0.1:8000:8000"]


@pytest.mark.parametrize("name", SERVICES)
def test_dockerfiles(name: str) -> None:
    service = compose({})["services"][name]
    found = dockerfile(service)
    assert sum(instruction == "FROM" for instruction, _ in found) == 2  # a build stage and the final image
    assert last(found, "USER").isdecimal()
    assert last(found, "USER") != "0"
    assert last(found, "EXPOSE") == str(PORTS[name])
    check = last(found, "HEALTHCHECK").partition("CMD ")[2]
    assert ["CMD", *json.loads(check)] == service["healthcheck"]["test"]
    for source in (rest.split()[0] for instruction, rest in found if instruction == "COPY" and "--from" not in rest):
        assert (ROOT / source).exists()
        assert f"!{source}" in (ROOT / ".dockerignore").read_text().split()


def test_the_gpu_engine_answers_to_the_engines_name() -> None:
    services = compose({})["services"]
    assert services["engine-gpu"]["networks"]["quire"]["aliases"] == ["engine"]
    assert "engine:50053" in services["router"]["command"]


def test_the_grace_period_is_above_the_drain() -> None:
    from quire.options.gateway import GatewayOptions
    from quire.options.server import GrpcServerOptions

    longest = max(GatewayOptions().drain_timeout_seconds, GrpcServerOptions().drain_timeout_seconds)
    for service in compose({})["services"].values():
        assert float(service["stop_grace_period"].rstrip("s")) > longest
