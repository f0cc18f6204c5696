"""`quire collect-env` on this machine, with and without what it looks for."""

from __future__ import annotations

import json
import platform
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import quire
from quire.cli import cli
from quire.environment import collect

SECRETS = {
    "QUIRE_API_KEY": "alpha", "QUIRE_GRPC_TOKEN": "beta", "OPENAI_API_KEY": "gamma",
    "VLLM_PROXY": "http://user:delta@proxy",
}  # fmt: skip
SECTIONS = ["Quire", "Python", "System", "Processor", "Memory", "GPUs", "Packages", "Torch", "Environment variables"]


@pytest.fixture(autouse=True)
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)


def run(*arguments: str) -> str:
    result = CliRunner().invoke(cli, ["collect-env", *arguments], env={**SECRETS, "CUDA_VISIBLE_DEVICES": "3"})
    assert result.exit_code == 0, result.output
    return result.stdout


def test_json_has_every_section_and_no_secret() -> None:
    text = run("--json")
    found = json.loads(text)
    assert list(found) == SECTIONS
    assert found["Quire"]["version"] == quire.__version__ and found["Packages"]["grpcio"]
    assert found["System"]["platform"] == platform.platform() and "of" in found["System"]["open files"]
    assert found["Processor"]["kernels"] and found["Memory"]["total"].endswith("GiB") and found["GPUs"]
    assert found["Environment variables"]["CUDA_VISIBLE_DEVICES"] == "3"
    assert not [secret for secret in SECRETS.values() if secret in text]
    assert "ModuleNotFoundError" in found["Torch"]["unavailable"]  # and all the rest is there


def test_text_has_the_same() -> None:
    lines = run().splitlines()
    assert [line for line in lines if line in SECTIONS] == SECTIONS
    assert "  CUDA_VISIBLE_DEVICES: 3" in lines and "  QUIRE_API_KEY: (hidden)" in lines


def test_gpus_are_listed_by_their_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'NVIDIA H100, 81559 MiB, 570.1, 9.0, 00:01.0, Disabled'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    found = collect.collect(())
    assert found["GPUs"] == {"0": "NVIDIA H100, 81559 MiB, 570.1, 9.0, 00:01.0, Disabled"}


def test_a_tool_that_fails_leaves_its_part_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    found = collect.collect(())
    assert found["GPUs"] == {"found": "none"} and found["System"]["C++ compiler"] == "none"
    assert "commit" not in found["Quire"]
