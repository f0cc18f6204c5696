"""A real stack for the end-to-end tests: `quire serve` as a process, real sockets, a small random model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.models import build
from tests.support.stack import Stack, start_stack, stop_stack


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny-llama"
    build("tiny-llama", folder)
    return folder


@pytest.fixture(scope="module")
def more_arguments() -> tuple[str, ...]:
    """Additional arguments of the module's stack."""
    return ()


@pytest.fixture(scope="module")
def stack(
    tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory, more_arguments: tuple[str, ...]
) -> Iterator[Stack]:
    """One float32 stack per module; float32, so that batches of any shape give the same greedy tokens."""
    running = start_stack(
        tiny_llama, tmp_path_factory.mktemp("stack") / "log",
        "--dtype", "float32", "--served-model-name", "tiny", "--max-model-len", "1024",
        "--kv-cache-memory-bytes", "64M", "--enable-prompt-tokens-details", *more_arguments,
    )  # fmt: skip
    try:
        running.wait_healthy()
        yield running
    finally:
        code = stop_stack(running)
    assert code == 0, running.log.read_text()
