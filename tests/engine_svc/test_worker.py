"""What a worker refuses as it starts."""

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
    with pytest.raises(StartupError, match="--speculative-config does not go with FakeForCausalLM: its recurrent"):
        await EngineWorker(executor, ModelOptions(model=str(tmp_path)), options).load()
    assert executor.closed
