"""Errors and choices at a worker's startup."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from engine_svc.worker import EngineWorker
from quire.errors import StartupError
from quire.options.model import ModelOptions
from tests.support.engine_options import engine_options
from tests.support.fake_executor import FakeExecutor


async def test_recurrent_models_take_no_guesses_back(tmp_path: Path) -> None:
    executor = FakeExecutor()
    executor.spec = msgspec.structs.replace(executor.spec, state_bytes=8)
    (tmp_path / "config.json").write_text('{"model_type": "mamba"}')
    (tmp_path / "model.safetensors").write_bytes(b"")
    options = engine_options(speculative_config={"method": "ngram"})
    with pytest.raises(StartupError, match="--speculative-config is not supported for FakeForCausalLM: its recurrent"):
        await EngineWorker(executor, ModelOptions(model=str(tmp_path)), options).load()
    assert executor.closed


async def test_what_guesses_is_as_the_options_say(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}')
    (tmp_path / "model.safetensors").write_bytes(b"")
    counted = []
    for config in ({}, {"method": "ngram"}, {"method": "suffix"}):
        worker = EngineWorker(
            FakeExecutor(), ModelOptions(model=str(tmp_path)), engine_options(speculative_config=config)
        )
        await worker.load()
        counted.append(bool(worker.loop.load().counters.draft_accepted_tokens.bounds))
        await worker.loop.stop()
    assert counted == [False, True, True]
