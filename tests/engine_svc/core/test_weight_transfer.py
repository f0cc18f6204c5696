"""Weights that a trainer process sends to real ranks are those that a folder with them has."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch
from safetensors.torch import load_file, save_file

from engine_svc.core.weight_transfer import Folders, Packing, Trainer
from engine_svc.executor.base import create_executor
from engine_svc.upkeep import CheckTensors, SentTensor
from quire.errors import Conflict, FailedPrecondition, InvalidRequest, QuireError, Unavailable
from quire.options.model import ModelOptions
from quire.sleep import PARTS, Leaving, SleepLevel
from tests.support.engine_client import generated, generation
from tests.support.engine_options import engine_options
from tests.support.engine_server import RunningEngine, running_engine
from tests.support.fake_executor import FakeExecutor
from tests.support.tiny_models import make_model
from tests.support.trainer import SECONDS, TrainerProcess, described, packed, running_trainer

pytestmark = pytest.mark.asyncio(loop_scope="module")
Weights = dict[str, torch.Tensor]
ALONE, PROMPT = Packing(None), [5, 6, 7, 8, 9, 10, 11, 12]
BIG = 1 << 30


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("served"), "llama")


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=[1, 2], ids=["one", "two ranks"])
async def engine(request: Any, served: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningEngine]:
    place = tmp_path_factory.mktemp("received")
    options: dict[str, Any] = {
        "dtype": "float32", "use_tqdm_on_load": False, "num_gpu_blocks_override": 64, "max_model_len": 64,
        "tensor_parallel_size": request.param, "cpu_threads": 1, "enable_sleep_mode": True,
        "weight_transfer_config": {"backend": "nccl", "folder": str(place)},
    }  # fmt: skip
    executor = create_executor(engine_options(**options).parallel)
    async with running_engine(executor, ModelOptions(model=str(served)), **options) as running:
        yield running


@pytest.fixture
def changed(served: Path) -> Weights:
    return {name: each.roll(1, 0) for name, each in load_file(served / "model.safetensors").items()}


async def tokens(engine: RunningEngine) -> list[int]:
    return await generated(engine, generation(PROMPT, max_tokens=12, ignore_eos=True))


def group_of(engine: RunningEngine, trainer: TrainerProcess, packing: Packing = ALONE) -> Trainer:
    return Trainer("127.0.0.1", trainer.port, 1, 1 + engine.worker.num_ranks, packing)


def start_trainer(engine: RunningEngine) -> Any:
    return running_trainer(1 + engine.worker.num_ranks)


async def join(engine: RunningEngine, trainer: TrainerProcess, packing: Packing = ALONE) -> None:
    await engine.worker.join_trainer(group_of(engine, trainer, packing), SECONDS)
    await engine.worker.transfer.start()


async def finish(engine: RunningEngine, version: str) -> None:
    await engine.worker.finish_weight_update(version, Leaving.KEEP, SECONDS)
    assert engine.worker.load_now().status.weight_version == version


def received(engine: RunningEngine) -> list[Weights]:
    """The tensors in each folder that is left."""
    (place,) = Path(str(engine.worker._options.upkeep.weight_transfer_config["folder"])).iterdir()
    folders = (each for each in place.iterdir() if each.is_dir())
    return [
        {name: each for file in folder.glob("*.safetensors") for name, each in load_file(file).items()}
        for folder in folders
    ]


def digests(weights: Weights) -> dict[str, str]:
    return {name: hashlib.sha256(each.numpy().tobytes()).hexdigest() for name, each in weights.items()}


def children(folder: Path) -> set[Path]:
    return set(folder.iterdir())


async def failure(awaitable: Any) -> QuireError:
    with pytest.raises(QuireError) as caught:
        await awaitable
    return caught.value


async def test_sent_weights_are_those_of_a_folder(
    engine: RunningEngine, served: Path, changed: Weights, tmp_path: Path
) -> None:
    """One by one and in buffers, in another type that holds the same numbers; then only some of them."""
    before, transfer, fingerprints = await tokens(engine), engine.worker.transfer, {engine.worker.info.fingerprint}
    with start_trainer(engine) as trainer:
        await join(engine, trainer)
        for half in (dict(list(changed.items())[:7]), dict(list(changed.items())[7:])):
            trainer.send(list(half.values()))
            await transfer.receive(described(half), None, SECONDS)
        assert await tokens(engine) == before
        await finish(engine, "first")
        after = await tokens(engine)
        assert after != before
        fingerprints.add(engine.worker.info.fingerprint)
        await engine.worker.administration.sleep(SleepLevel.WEIGHTS_FORGOTTEN, Leaving.KEEP, SECONDS)
        await engine.worker.administration.wake_up(PARTS)
        assert await tokens(engine) == after  # read again from what was received
        old = {name: each.double() for name, each in load_file(served / "model.safetensors").items()}
        await transfer.start()
        trainer.send([packed(old)])
        await transfer.receive(described(old), Packing(BIG), SECONDS)
        await finish(engine, "second")
        assert await tokens(engine) == before
        fingerprints.add(engine.worker.info.fingerprint)
        some = {name: each for name, each in changed.items() if "layers.0" in name}
        await transfer.start()
        trainer.send(list(some.values()))
        await transfer.receive(described(some), None, SECONDS)
        await finish(engine, "third")
    assert len(fingerprints | {engine.worker.info.fingerprint}) == 4
    (found,) = received(engine)
    assert found.keys() == old.keys()
    assert all(torch.equal(each, some.get(name, old[name].float())) for name, each in found.items())
    assert await engine.worker.digest_weights() == digests(found)
    folder = shutil.copytree(served, tmp_path / "changed")
    save_file(changed, folder / "model.safetensors", {"format": "pt"})
    await engine.worker.update_weights(str(folder), "", Leaving.KEEP, SECONDS)
    assert await tokens(engine) == after
    assert await engine.worker.digest_weights() == digests(changed)
    save_file(old, folder / "others", {"format": "pt"})
    (folder / "others").rename(folder / "model.safetensors")
    assert "not those that were loaded" in (await failure(engine.worker.digest_weights())).message


async def test_tensors_that_do_not_fit_change_nothing(engine: RunningEngine, changed: Weights) -> None:
    before, version = await tokens(engine), engine.worker.load_now().status.weight_version
    name, tensor = next((name, each) for name, each in changed.items() if each.dim() == 2)
    for wrong, told in (
        (SentTensor(name, "float32", (3, *tensor.shape)), "in the served checkpoint"),
        (SentTensor(name, "int32", tuple(tensor.shape)), "but F32"),
        (SentTensor(name, "float7", tuple(tensor.shape)), "must be one of"),
    ):
        answers = await engine.worker.administration.upkeep(CheckTensors([wrong]))
        assert all(told in answer for answer in answers), answers
        assert len(answers) == engine.worker.num_ranks
    with start_trainer(engine) as trainer:
        await join(engine, trainer)
        trainer.send([tensor])
        other = [SentTensor("model.other.weight", "float32", (4,))]
        error = await failure(engine.worker.transfer.receive(other, None, SECONDS))
        assert (type(error), "not in the served checkpoint" in error.message) == (InvalidRequest, True)
        assert trainer.outcome()  # it waits for nobody
    assert isinstance(await failure(engine.worker.transfer.start()), Conflict)
    assert (await tokens(engine), engine.worker.load_now().status.weight_version) == (before, version)


async def test_a_trainer_that_dies_leaves_the_served_weights(engine: RunningEngine, changed: Weights) -> None:
    before, transfer = await tokens(engine), engine.worker.transfer
    with start_trainer(engine) as trainer:
        await join(engine, trainer)
        trainer.send(list(changed.values())[:3], dies=True)
        error = await failure(transfer.receive(described(changed), None, SECONDS))
        assert isinstance(error, Unavailable)
        assert "the served ones stay" in error.message
    assert isinstance(await failure(engine.worker.finish_weight_update("4", Leaving.KEEP, 1)), Conflict)
    assert await tokens(engine) == before


async def test_waits_have_a_limit(engine: RunningEngine, changed: Weights) -> None:
    with start_trainer(engine) as trainer:
        await join(engine, trainer)
        error = await failure(engine.worker.transfer.receive(described(changed), None, 0.05))
        assert "The weights have not arrived" in error.message
        nobody = Trainer("127.0.0.1", trainer.port, 1, 8, ALONE)
        assert isinstance(await failure(engine.worker.join_trainer(nobody, 0.05)), Unavailable)


async def test_what_has_to_come_first(engine: RunningEngine) -> None:
    transfer = engine.worker.transfer
    assert isinstance(await failure(transfer.receive([], None, 1)), Conflict)
    for world_size, first_rank in ((1 + engine.worker.num_ranks, 0), (engine.worker.num_ranks, 1)):
        error = await failure(engine.worker.join_trainer(Trainer("127.0.0.1", 1, first_rank, world_size, ALONE), 1))
        assert error.parameter == "world_size"
    with start_trainer(engine) as trainer:
        await join(engine, trainer)
        assert isinstance(await failure(engine.worker.finish_weight_update("5", Leaving.KEEP, 1)), InvalidRequest)


async def test_what_others_left_behind_is_removed(tmp_path: Path) -> None:
    (tmp_path / "quire-weights-left" / "1").mkdir(parents=True)
    (tmp_path / "quire-weights-left" / "lock").touch()
    options = engine_options(weight_transfer_config={"folder": str(tmp_path)}).upkeep
    folders = [Folders(options) for _ in range(8)]
    made = await asyncio.gather(*(asyncio.to_thread(each.make) for each in folders))
    assert {each.parent for each in made} == children(tmp_path)  # those at work keep theirs
    for each in folders:
        each.close()
    assert not children(tmp_path)


async def test_workers_that_no_trainer_may_join() -> None:
    trainer = Trainer("127.0.0.1", 1, 1, 2, ALONE)
    async with running_engine(FakeExecutor()) as plain:
        assert "--weight-transfer-config" in (await failure(plain.worker.join_trainer(trainer, 1))).message
    executor = FakeExecutor()
    executor.spans_machines = True
    async with running_engine(executor, weight_transfer_config={"backend": "nccl"}) as spread:
        assert isinstance(await failure(spread.worker.join_trainer(trainer, 1)), FailedPrecondition)


async def test_weights_are_served_even_if_nobody_waits_for_them(engine: RunningEngine, changed: Weights) -> None:
    """And the next update does not remove the files that they come from."""
    worker = engine.worker
    with start_trainer(engine) as trainer:
        await join(engine, trainer)
        trainer.send(list(changed.values()))
        await worker.transfer.receive(described(changed), None, SECONDS)
        waiting = asyncio.create_task(worker.finish_weight_update("6", Leaving.KEEP, SECONDS))
        for _ in range(2):  # it begins
            await asyncio.sleep(0)
        waiting.cancel()
        await worker.transfer.start()
        assert worker.load_now().status.weight_version == "6"
        await worker.administration.sleep(SleepLevel.WEIGHTS_FORGOTTEN, Leaving.KEEP, SECONDS)
        await worker.administration.wake_up(PARTS)


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("draft"), "llama", initializer_range=0.02)


async def accepted(engine: RunningEngine) -> float:
    """How many tokens of a request were drafted."""
    before = engine.worker.load_now().counters.draft_accepted_tokens.sum
    await tokens(engine)
    return engine.worker.load_now().counters.draft_accepted_tokens.sum - before


async def test_a_draft_models_weights(served: Path, draft: Path, changed: Weights, tmp_path: Path) -> None:
    """With the weights of the model itself, more of its drafts are right; each of the two keeps what it has got."""
    options: dict[str, Any] = {
        "dtype": "float32", "use_tqdm_on_load": False, "num_gpu_blocks_override": 64, "max_model_len": 64,
        "enable_sleep_mode": True, "weight_transfer_config": {"folder": str(tmp_path)},
        "speculative_config": {"model": str(draft), "num_speculative_tokens": 3},
    }  # fmt: skip
    weights = load_file(served / "model.safetensors")
    executor = create_executor(engine_options(**options).parallel)
    async with running_engine(executor, ModelOptions(model=str(served)), **options) as engine:
        before, transfer = await tokens(engine), engine.worker.transfer
        with start_trainer(engine) as trainer:
            await engine.worker.join_trainer(group_of(engine, trainer), SECONDS)
            guessed = await accepted(engine)
            await transfer.start(of_draft=True)
            trainer.send(list(weights.values()))
            await transfer.receive(described(weights), None, SECONDS)
            await finish(engine, "draft")
            assert await accepted(engine) > guessed
            assert await tokens(engine) == before
            await transfer.start()
            trainer.send(list(changed.values()))
            await transfer.receive(described(changed), None, SECONDS)
            await finish(engine, "model")
            assert await tokens(engine) != before
            some = {name: each for name, each in changed.items() if "layers.0" in name}
            rest = {name: each for name, each in changed.items() if name not in some}
            for part in (some, rest):  # each adds to what the draft model has
                await transfer.start(of_draft=True)
                trainer.send(list(part.values()))
                await transfer.receive(described(part), None, SECONDS)
                await finish(engine, "draft")
            after = await tokens(engine)
            await engine.worker.administration.sleep(SleepLevel.WEIGHTS_FORGOTTEN, Leaving.KEEP, SECONDS)
            await engine.worker.administration.wake_up(PARTS)
            assert await tokens(engine) == after
        assert [digests(each) for each in received(engine)] == [digests(changed)] * 2  # the last ones of both


async def test_no_draft_model_no_weights_of_it(engine: RunningEngine) -> None:
    with start_trainer(engine) as trainer:
        await engine.worker.join_trainer(group_of(engine, trainer), SECONDS)
        error = await failure(engine.worker.transfer.start(of_draft=True))
        assert (type(error), "There is no draft model" in error.message) == (FailedPrecondition, True)


async def test_a_draft_model_whose_weights_cannot_be_sent(served: Path, tmp_path: Path) -> None:
    """The ranks leave the group, which the worker must know."""
    options: dict[str, Any] = {
        "dtype": "float32", "use_tqdm_on_load": False, "num_gpu_blocks_override": 64, "max_model_len": 64,
        "weight_transfer_config": {"folder": str(tmp_path / "received")},
        "speculative_config": {"model": str(shutil.copytree(served, tmp_path / "draft")), "num_speculative_tokens": 3},
    }  # fmt: skip
    (tmp_path / "received").mkdir()
    executor = create_executor(engine_options(**options).parallel)
    async with running_engine(executor, ModelOptions(model=str(served)), **options) as engine:
        with start_trainer(engine) as trainer:
            await engine.worker.join_trainer(group_of(engine, trainer), SECONDS)
            (tmp_path / "draft" / "model.safetensors").unlink()
            error = await failure(engine.worker.transfer.start(of_draft=True))
            assert (type(error), "The group has been left" in error.message) == (FailedPrecondition, True)
            assert isinstance(await failure(engine.worker.transfer.start()), Conflict)
