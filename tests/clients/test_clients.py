"""Clients that others wrote, each doing its ordinary job against `quire serve`: one script each, run as a process.

They have an environment of their own, as they would pin what ours has; `make clients` makes it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.minilm import minilm_folder
from tests.support.stack import ROOT, Stack, start_stack, stop_stack

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parent
ENVIRONMENT = ROOT / ".venv-clients"
SECONDS = 280
SCRIPTS = (
    "openai_sync.py", "openai_async.py", "openai_node.cjs", "anthropic_agent.py", "anthropic_node.cjs",
    "cohere_chat.py", "cohere_vectors.py", "langchain_chat.py", "instructor_models.py", "litellm_calls.py",
    "pydantic_ai_agent.py", "smg_gateway.py", "schemathesis_fuzzing.py", "lm_eval_tasks.py",
)  # fmt: skip
# What they would look for elsewhere before they begin, or tell others of.
OFFLINE = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LANGSMITH_TRACING": "false",
    "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1",
}  # fmt: skip


def served(folder: Path, model: Path | None, *options: str) -> Iterator[Stack]:
    stack = start_stack(model, folder / "serve.log", *options)
    try:
        stack.wait_healthy()
        yield stack
    finally:
        stop_stack(stack)


def store_in(folder: Path) -> tuple[str, str]:
    return "--responses-store", f"sqlite:///{folder / 'responses.db'}"


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("demo")
    yield from served(folder, None, *store_in(folder))


@pytest.fixture
def fuzzed(tmp_path: Path) -> Iterator[Stack]:
    """What is fuzzed has no bound of its own on the length of answers."""
    bound = ("--override-generation-config", '{"max_new_tokens": 4}')
    yield from served(tmp_path, None, *bound, *store_in(tmp_path), "--enable-tokenizer-info-endpoint")


@pytest.fixture
def minilm(tmp_path: Path) -> Iterator[Stack]:
    """A pooling model."""
    yield from served(tmp_path, minilm_folder(), "--served-model-name", "minilm")


@pytest.fixture
def grpc(tmp_path: Path) -> Iterator[Stack]:
    """Has no HTTP that could be asked for its health."""
    stack = start_stack(None, tmp_path / "serve.log", "--grpc")
    try:
        stack.wait_ready()
        yield stack
    finally:
        assert stop_stack(stack) == 0


# The stack that a script is for; the others are for the demo model.
STACKS = {"cohere_vectors.py": "minilm", "smg_gateway.py": "grpc", "schemathesis_fuzzing.py": "fuzzed"}


def interpreter(script: str) -> str:
    """What runs it; skips the test where that, or the client, is not there."""
    if script.endswith(".cjs"):
        package = "openai" if script.startswith("openai") else "@anthropic-ai/sdk"
        if not (node := shutil.which("node")) or not (ENVIRONMENT / "node_modules" / package).exists():
            pytest.skip(f"needs node and npm's package {package}: install Node.js, then `make clients`")
        return node
    python = ENVIRONMENT / "bin/python"
    if not python.exists():
        pytest.skip("needs the clients' own environment: `make clients`")
    if script == "lm_eval_tasks.py" and not (ENVIRONMENT / "bin/lm_eval").exists():
        pytest.skip("lm-eval brings hundreds of megabytes: `make test-lm-eval` installs and runs it")
    return str(python)


@pytest.mark.parametrize("script", SCRIPTS)
def test_client(script: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    command = [interpreter(script), str(FOLDER / script)]
    # Not started for what is skipped.
    stack: Stack = request.getfixturevalue(STACKS.get(script, "demo"))
    environment = {
        **os.environ, **OFFLINE, "OPENAI_BASE_URL": f"{stack.url}/v1", "OPENAI_API_KEY": "unused",
        "ANTHROPIC_BASE_URL": stack.url, "ANTHROPIC_API_KEY": "unused",
        "NODE_PATH": str(ENVIRONMENT / "node_modules"), "HF_HOME": str(tmp_path),
    }  # fmt: skip
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, timeout=SECONDS, text=True, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


def test_every_script_is_run() -> None:
    here = {path.name for path in FOLDER.iterdir() if path.suffix in (".py", ".cjs")}
    assert here - {Path(__file__).name} == set(SCRIPTS)
