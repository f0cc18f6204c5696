"""A whole stack for a tiny model, and a client of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import openai

from tests.support.stack import start_stack, stop_stack


@contextlib.contextmanager
def serving_tiny(folder: Path, *arguments: str) -> Iterator[openai.OpenAI]:
    """A client of a stack that serves a tiny model in float32 under the name `tiny`. No token ends its answers."""
    running = start_stack(
        folder, folder / "log", "--dtype", "float32", "--served-model-name", "tiny", "--max-model-len", "512",
        "--kv-cache-memory-bytes", "64M", "--override-generation-config", '{"eos_token_id": []}', *arguments,
    )  # fmt: skip
    try:
        running.wait_healthy()
        with openai.OpenAI(base_url=f"{running.url}/v1", api_key="unused", max_retries=0, timeout=60) as client:
            yield client
    finally:
        code = stop_stack(running)
    assert code == 0, running.log.read_text()
