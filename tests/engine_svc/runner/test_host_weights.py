"""Layer weights that are copied from host memory in each forward pass: which, when, and that results stay the same."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from engine_svc.layers.context import PackedLayer
from engine_svc.layers.host_weights import ROOMS, HostWeights
from engine_svc.loader.model import load_model
from engine_svc.parallel.group import ParallelGroup, ParallelGroups
from engine_svc.parallel.layout import ParallelLayout
from engine_svc.runner.offload import OffloadedTensors
from quire.errors import StartupError
from tests.support.engine_options import engine_options
from tests.support.late_copies import LateCopies, late_copies
from tests.support.lora import adapter_executor, modules_of, write_adapter
from tests.support.run_engine import GREEDY, random_prompts, run, running_engine, tokens
from tests.support.tiny_models import make_model

__all__ = ["late_copies"]  # a fixture

LAYERS = 6
PROMPTS = random_prompts(1, 17)
OPTIONS = {"cpu_kernels": "torch", "cpu_threads": 1}
MEBIBYTE = 1 / 1024  # in GiB
CPU = torch.device("cpu")


class Part(PackedLayer):
    """A layer with 256 bytes of weights."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.rand(64)

    def weights(self) -> Sequence[torch.Tensor]:
        return (self.weight,)


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Part(), Part()

    def forward(self) -> list[float]:
        return [*self.first.weight.tolist(), *self.second.weight.tolist()]


def hosted(count: int, group: tuple[int, int] | None = None) -> tuple[list[Layer], list[list[float]], LateCopies]:
    """Returns layers, `count` of which fit into host memory, what each computes, and the copies that were made."""
    layers, copies = [Layer() for _ in range(LAYERS)], LateCopies()
    expected = [layer() for layer in layers]
    weights = HostWeights(layers, count * 512 + 100, copies, group)
    for layer in layers:
        weights.take(layer.first)
        weights.take(layer.second)
    weights.start(CPU)
    return layers, expected, copies


def test_every_pass_computes_with_each_layers_own_weights() -> None:
    layers, expected, copies = hosted(4)
    for _ in range(3):
        assert [layer() for layer in layers] == expected
    assert len(copies.log) == 3 * 2 * 4


def test_a_copy_is_begun_a_layer_ahead_and_awaited_by_its_own() -> None:
    layers, _, copies = hosted(4)
    seen: list[Any] = []
    for layer in layers:
        layer()
        seen.append([what for what, _, _ in copies.log[sum(len(each) for each in seen) :]])
    ahead = ["begin", "begin"]
    assert seen == [ahead, ["wait"], ["begin", "wait"], [], ["begin", "wait"], ["wait"]]
    assert len({room for _, room, _ in copies.log}) == 2


def test_a_layer_that_is_computed_in_parts_is_copied_once() -> None:
    layers, expected, copies = hosted(6)
    layers[0]()
    assert [[layer(), layer()] for layer in layers[1:]] == [[each, each] for each in expected[1:]]
    assert len(copies.log) == 2 * LAYERS


def test_rooms_whose_memory_was_given_back_are_used_again() -> None:
    """After a GPU has slept, weights that are in host memory are not copied there again."""
    layers, expected, _ = hosted(4)
    assert [layer() for layer in layers] == expected
    on_device = [part.weight for layer in layers for part in (layer.first, layer.second)]
    asleep = OffloadedTensors(on_device)
    assert asleep.num_bytes == 2 * (LAYERS - 4 + ROOMS) * 256
    assert not any(weight.untyped_storage().nbytes() for weight in on_device)
    asleep.restore()
    for _ in range(2):
        assert [layer() for layer in layers] == expected


def places(layers: Sequence[Layer]) -> list[int]:
    """The numbers of the layers that are in host memory."""
    sharing = [layer.first.weight.untyped_storage().nbytes() > 256 for layer in layers]
    return [number for number, is_hosted in enumerate(sharing) if is_hosted]


@pytest.mark.parametrize(("count", "where"), [(3, [1, 3, 5]), (4, [1, 2, 4, 5]), (6, [0, 1, 2, 3, 4, 5])])
def test_layers_that_stay_lie_at_even_distances(count: int, where: list[int]) -> None:
    assert places(hosted(count)[0]) == where


@pytest.mark.parametrize(
    ("group", "where"), [((2, 1), [1, 3, 5]), ((3, 2), [1, 2, 4, 5]), ((4, 3), [1, 2, 3, 5]), ((1, 1), [*range(6)])]
)
def test_the_last_layers_of_each_group_are_copied(group: tuple[int, int], where: list[int]) -> None:
    layers, expected, _ = hosted(0, group)
    assert places(layers) == where
    assert [layer() for layer in layers] == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"offload_group_size": 2, "offload_num_in_group": 3}, "is more than --offload-group-size 2"),
        ({"offload_group_size": 2, "cpu_offload_gb": 1.0}, "both say what is offloaded"),
    ],
)
def test_groups_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(StartupError, match=message):
        engine_options(**options).cache.offloaded_layers()


@pytest.mark.parametrize("count", [0, 2])
def test_so_few_that_it_does_not_pay_stay_on_the_device(count: int, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        layers, expected, copies = hosted(count)
    assert [layer() for layer in layers] == expected
    assert not copies.log
    assert f"only {count} of 6" in caplog.text


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("hosted") / "model", "llama", num_hidden_layers=LAYERS)


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("hosted") / "mixture", "qwen3-moe", num_hidden_layers=LAYERS)


def generate(folder: Path, **options: Any) -> list[list[int]]:
    """Generates in chunks, with the prompts beside each other."""
    with running_engine(folder, **OPTIONS, max_num_batched_tokens=12, **options) as engine:
        return tokens(run(engine, PROMPTS, replace(GREEDY, max_tokens=3)))


@pytest.mark.parametrize("quantization", [None, "int8", "int4", "fp8"])
def test_tokens_are_the_same(folder: Path, late_copies: list[LateCopies], quantization: str | None) -> None:
    asked = ({}, {"cpu_offload_gb": MEBIBYTE / 2}, {"offload_group_size": 2})
    found = [generate(folder, quantization=quantization, **options) for options in asked]
    assert found[0] == found[1] == found[2]
    assert len(late_copies) == 2
    for copies in late_copies:
        assert len({content for what, _, content in copies.log if what == "begin"}) >= 3


def test_experts(mixture: Path, late_copies: list[LateCopies]) -> None:
    found = [generate(mixture, cpu_offload_gb=host) for host in (0.0, MEBIBYTE)]
    assert found[0] == found[1]
    assert late_copies[0].log


def test_adapters(folder: Path, late_copies: list[LateCopies], tmp_path: Path) -> None:
    found, slots = [], [1, 0]
    for host_bytes in (0.0, MEBIBYTE):
        with adapter_executor(folder, **OPTIONS, cpu_offload_gb=host_bytes) as executor:
            if not found:
                modules = modules_of(folder, executor.spec.adapter_modules, ("q_proj", "o_proj", "down_proj"))
                adapter = write_adapter(tmp_path / "adapter", modules, rank=4, seed=1)
            executor.read(adapter.folder)
            executor.place({1: adapter.folder})
            found.append(executor.generate(PROMPTS, slots))
    assert found[0] == found[1]
    assert late_copies[0].log


@torch.inference_mode()
def test_each_rank_has_its_own_parts(folder: Path, late_copies: list[LateCopies]) -> None:
    group = ParallelGroup(1, 2)
    groups = ParallelGroups(ParallelLayout(tensor=2), 1, tensor=group, expert=group)
    found = []
    for host_bytes in (0.0, MEBIBYTE):
        options = engine_options(dtype="float32", **OPTIONS, cpu_offload_gb=host_bytes)
        layers = load_model(folder, options, groups, CPU).model.layers
        for layer in layers.values():
            for hook in layer._forward_pre_hooks.values():
                hook(layer, ())
            found += [weight.clone() for part in layer.modules() if isinstance(part, PackedLayer)
                      for weight in part.weights()]  # fmt: skip
    half = len(found) // 2
    assert half > LAYERS
    assert all(torch.equal(one, other) for one, other in zip(found[:half], found[half:], strict=True))
    assert late_copies[0].log


def test_a_cpu_says_that_it_has_no_effect(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), running_engine(folder, cpu_offload_gb=1.0) as engine:
        assert run(engine, PROMPTS[:1])
    assert "--cpu-offload-gb has no effect: on a CPU" in caplog.text


@pytest.mark.parametrize("flag", ["--enable-eplb", "--enable-dbo"])
def test_what_copies_do_not_go_with_is_refused(folder: Path, late_copies: list[LateCopies], flag: str) -> None:
    """Refuses experts that move, and passes that run as two halves."""
    given = {"enable_eplb": flag == "--enable-eplb", "enable_dbo": flag == "--enable-dbo"}
    options = engine_options(cpu_offload_gb=1.0, enable_expert_parallel=True, **given)
    with pytest.raises(StartupError, match=f"--cpu-offload-gb cannot be combined with {flag}"):
        load_model(folder, options, ParallelGroups(), CPU)
