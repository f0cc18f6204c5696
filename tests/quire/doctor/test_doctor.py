"""The problems that `quire doctor` finds before a start."""

from __future__ import annotations

import dataclasses
import json
import socket
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from quire.cli import cli
from quire.doctor import machine
from quire.doctor import model as model_check
from quire.doctor.finding import Finding, Grade
from quire.doctor.run import examine
from quire.options.engine import EngineOptions
from quire.options.gateway import GatewayOptions
from quire.options.log import LogOptions
from quire.options.model import ModelOptions
from quire.options.router import RouterOptions
from quire.options.serve import ServeOptions
from quire.options.server import RpcSecurityOptions
from quire.options.tokenizer import TokenizerOptions
from quire.serve.layout import StackOptions
from quire.serve.ports import free_ports
from tests.support.engine_options import engine_options


def stack(model: str = "quire-demo", engine: EngineOptions = EngineOptions(), **gateway: Any) -> StackOptions:
    chosen = {"router_address": (), "tokenizer_address": (), "port": free_ports(1)[0]} | gateway
    return StackOptions(
        ServeOptions(), ModelOptions(model), GatewayOptions(**chosen), TokenizerOptions(), RouterOptions(), engine,
        RpcSecurityOptions(), LogOptions(),
    )  # fmt: skip


def problems(options: StackOptions) -> dict[str, str]:
    """Subject → text of each problem."""
    return {finding.subject: finding.text for finding in examine(options) if finding.grade is Grade.PROBLEM}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(bytes(1000))
    return tmp_path


def test_the_model_in_the_box_starts() -> None:
    result = CliRunner().invoke(cli, ["doctor", "--port", str(free_ports(1)[0])])
    assert result.exit_code == 0, result.output
    assert "0 problems" in result.output
    for subject in ("processor", "options", "ports", "model", "memory", "GPU", "open files", "disk"):
        assert f" {subject}: " in result.output


@pytest.mark.parametrize("flag", ["--enable-auto-tool-choice", "--enable-reasoning", "--skip-tokenizer-init"])
def test_the_formats_of_the_model_in_the_box_need_not_be_named(flag: str) -> None:
    result = CliRunner().invoke(cli, ["doctor", "--port", str(free_ports(1)[0]), flag])
    assert result.exit_code == 0, result.output


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        result = CliRunner().invoke(cli, ["doctor", "--port", str(port)])
    assert result.exit_code == 1
    assert f"ports: Port {port} on 127.0.0.1 is in use by another process." in result.output
    assert "1 problem," in result.output


def test_a_folder_that_is_whole(folder: Path) -> None:
    assert not problems(stack(str(folder)))


def test_a_folder_without_weights_or_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    (folder / "model.safetensors").unlink()
    found = problems(stack(str(folder)))
    assert found.keys() == {"weights", "tokenizer"}
    assert not problems(stack(str(folder), engine_options(load_format="dummy"), skip_tokenizer_init=True))


def test_a_folder_that_lacks_shards(folder: Path) -> None:
    index = {"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "lacks model-2.safetensors" in problems(stack(str(folder)))["weights"]


@pytest.mark.parametrize(
    ("there", "load_format", "is_found"),
    [
        ("pytorch_model.bin", "auto", False),
        ("pytorch_model.bin", "pt", True),
        ("model.tensors", "tensorizer", True),
        ("model.gguf", "auto", False),
        ("model.gguf", "gguf", True),
    ],
)
def test_weights_are_those_of_the_format(folder: Path, there: str, load_format: str, is_found: bool) -> None:
    (folder / "model.safetensors").rename(folder / there)
    found = problems(stack(str(folder), engine_options(load_format=load_format)))
    assert found.keys() == (set() if is_found else {"weights"})


@pytest.mark.parametrize("name", ["tekken.json", "tokenizer.model", "merges.txt", "vocab.txt", "qwen.tiktoken"])
def test_other_files_that_describe_a_tokenizer(folder: Path, name: str) -> None:
    (folder / "tokenizer.json").rename(folder / name)
    assert not problems(stack(str(folder)))
    (folder / name).rename(folder / "tokenizer.bin")
    assert "no tokenizer.json" in problems(stack(str(folder)))["tokenizer"]


def test_a_configuration_that_is_elsewhere(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("other")
    (folder / "config.json").rename(other / "config.json")
    assert not problems(stack(str(folder), engine_options(hf_config_path=str(other))))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is not a JSON object"),
        ("[1]", "is not a JSON object"),
        ('{"architectures": [3]}', "must be a list of names"),
        ('{"architectures": "Llama"}', "must be a list of names"),
    ],
)
def test_a_configuration_that_is_broken(folder: Path, text: str, words: str) -> None:
    (folder / "config.json").write_text(text)
    assert words in problems(stack(str(folder)))["model"]


def test_no_folder_at_all(tmp_path: Path) -> None:
    assert "there is no such folder" in problems(stack(str(tmp_path / "none")))["model"]
    assert "neither config.json nor params.json" in problems(stack(str(tmp_path)))["model"]


def test_more_weights_than_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_check, "available_bytes", lambda: 999)
    monkeypatch.setattr(model_check, "count_gpus", lambda: 0)
    assert "GiB are needed" in problems(stack(str(folder)))["memory"]


def test_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "count_gpus", lambda: 0)
    assert "--device cuda needs a GPU" in problems(stack(engine=engine_options(device="cuda")))["GPU"]
    monkeypatch.setattr(machine, "count_gpus", lambda: 1)
    two = engine_options(tensor_parallel_size=2)
    assert "2 are needed, but only 1 found" in problems(stack(engine=two))["GPU"]


def test_options_that_do_not_go_together() -> None:
    assert "no --api-key is set" in problems(stack(host="0.0.0.0"))["options"]


def test_without_a_compiler_it_would_be_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    (found,) = machine.compiler(stack())
    assert (found.grade, found.subject) == (Grade.WARNING, "compiler")


def test_too_few_open_files() -> None:
    crowded = dataclasses.replace(stack(), gateway=GatewayOptions(max_connections=2**40))
    found: list[Finding] = list(machine.limits(crowded))
    assert found[0].subject == "open files"
    assert found[0].grade is Grade.WARNING or "as many" in found[0].text
