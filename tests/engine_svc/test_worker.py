"""Errors and choices at a worker's startup."""

from __future__ import annotations

from pathlib import Path

import msgspec

from engine_svc.requests.outputs import SequenceDelta
from engine_svc.requests.request import GenerationRequest
from engine_svc.worker import EngineWorker
from quire.options.model import ModelOptions
from quire.sampling import SamplingParameters
from tests.support.engine_options import engine_options
from tests.support.fake_executor import FakeExecutor


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


class Unheard:
    """A sink of requests whose answers do not matter."""

    def deliver(self, deltas: list[SequenceDelta]) -> None:
        pass


async def test_models_with_states_have_places_for_saved_ones(tmp_path: Path) -> None:
    """As many as the ranks allocate: a prompt that is sent again begins with one."""
    executor = FakeExecutor(keeps_states=True)
    executor.spec = msgspec.structs.replace(executor.spec, state_bytes=8 * 4096)
    (tmp_path / "config.json").write_text('{"model_type": "mamba"}')
    (tmp_path / "model.safetensors").write_bytes(b"")
    worker = EngineWorker(executor, ModelOptions(model=str(tmp_path)), engine_options(max_num_seqs=8))
    await worker.load()
    request = GenerationRequest("r", list(range(300)), SamplingParameters(temperature=0, max_tokens=1))
    hits = []
    for _ in range(2):
        worker.loop.submit(request, Unheard())
        await worker.loop.wait_idle()
        hits.append(worker.loop.load().counters.prefix_cache_hits)
    await worker.loop.stop()
    assert worker.info.num_snapshots == 4 * 8
    assert hits == [0, 256]


async def test_fewer_sequences_run_where_their_states_do_not_fit(tmp_path: Path) -> None:
    """The ranks have room for the states of as many as the scheduler runs."""
    slots = set()
    executor = FakeExecutor(
        keeps_states=True, on_step=lambda plan: slots.update(sequence.slot for sequence in plan.scheduled)
    )
    executor.spec = msgspec.structs.replace(executor.spec, state_bytes=256 * executor.spec.available_bytes // 6)
    (tmp_path / "config.json").write_text('{"model_type": "mamba"}')
    (tmp_path / "model.safetensors").write_bytes(b"")
    worker = EngineWorker(executor, ModelOptions(model=str(tmp_path)), engine_options())
    await worker.load()
    for _ in range(5):
        worker.loop.submit(
            GenerationRequest("r", [1, 2, 3], SamplingParameters(temperature=0, max_tokens=4)), Unheard()
        )
    await worker.loop.wait_idle()
    await worker.loop.stop()
    assert worker.info.max_num_seqs == executor._size.num_sequences == 3
    assert worker.info.state_bytes == executor.spec.available_bytes // 6 * 3
    assert slots == {0, 1, 2}
