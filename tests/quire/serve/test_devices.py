"""GPU assignment for several engines with --tensor-parallel-size ranks each."""

from __future__ import annotations

import pytest

from quire.errors import StartupError
from quire.options.parallel import ParallelOptions
from quire.serve.devices import count_gpus, devices_of_encoders, devices_of_engines, show_devices


@pytest.mark.parametrize(
    ("engines", "ranks", "gpus", "named", "expected"),
    [
        (2, 1, 2, None, ["0", "1"]),
        (2, 2, 8, None, ["0,1", "2,3"]),
        (2, 1, 3, "3, 5,7", ["3", "5"]),
        (2, 1, 2, "GPU-aaaa,GPU-bbbb", ["GPU-aaaa", "GPU-bbbb"]),
    ],
)
def test_each_engine_sees_its_own(engines: int, ranks: int, gpus: int, named: str | None, expected: list[str]) -> None:
    environment = {} if named is None else {"CUDA_VISIBLE_DEVICES": named}
    found = devices_of_engines(engines, ParallelOptions(ranks), gpus, environment)
    assert found == [{"CUDA_VISIBLE_DEVICES": names} for names in expected]


@pytest.mark.parametrize(("engines", "gpus"), [(1, 4), (3, 0)])
def test_one_engine_and_engines_without_gpus_see_what_there_is(engines: int, gpus: int) -> None:
    assert devices_of_engines(engines, ParallelOptions(), gpus, {}) == [{}] * engines


def test_engines_may_share_a_gpu() -> None:
    environment = {"CUDA_VISIBLE_DEVICES": "4,7"}
    found = devices_of_engines(3, ParallelOptions(), 2, environment, 0.5)
    assert [each["CUDA_VISIBLE_DEVICES"] for each in found] == ["4", "7", "4"]
    with pytest.raises(StartupError, match=r"3 engines need 3 GPUs.*--gpu-memory-utilization 0\.45,"):
        devices_of_engines(3, ParallelOptions(), 2, environment, 0.6)
    with pytest.raises(StartupError, match=r"need 4 GPUs.*size\), or set"):  # ranks sum over devices of their own
        devices_of_engines(2, ParallelOptions(2), 2, environment, 0.5)


def test_too_few_gpus_are_refused() -> None:
    with pytest.raises(
        StartupError, match=r"3 engines of 2 ranks each need 6 GPUs, .* has 4. Lower the number of engines to 2"
    ):
        devices_of_engines(3, ParallelOptions(2), 4, {})
    with pytest.raises(StartupError, match=r"An engine of 8 ranks needs 8 GPUs, .* has 4. Use fewer ranks"):
        devices_of_engines(1, ParallelOptions(8), 4, {})
    with pytest.raises(StartupError, match=r"3 engines need 3 GPUs"):
        devices_of_engines(3, ParallelOptions(), 2, {})


def test_the_driver_is_asked() -> None:
    assert count_gpus() >= 0


@pytest.mark.parametrize("ids", [("2", "GPU-aaaa"), ("2,GPU-aaaa",)])
def test_the_chosen_ones_are_shown(ids: tuple[str, ...]) -> None:
    environment: dict[str, str] = {}
    show_devices(ids, environment)
    show_devices((), environment)
    assert environment == {"CUDA_VISIBLE_DEVICES": "2,GPU-aaaa"}
    found = devices_of_engines(2, ParallelOptions(), 2, environment)
    assert [each["CUDA_VISIBLE_DEVICES"] for each in found] == ["2", "GPU-aaaa"]


@pytest.mark.parametrize(
    ("ids", "words"),
    [(("0", "0"), "named once"), (("0,",), "named once"), (("1",), "contradicts CUDA_VISIBLE_DEVICES=0")],
)
def test_what_cannot_be_shown_is_refused(ids: tuple[str, ...], words: str) -> None:
    with pytest.raises(StartupError, match=f"--device-ids .*{words}"):
        show_devices(ids, {"CUDA_VISIBLE_DEVICES": "0"} if "contradicts" in words else {})


@pytest.mark.parametrize(
    ("taken", "gpus", "named", "shown"),
    [
        (1, 0, "", [None, None, None]), (1, 1, "", ["0", "0", "0"]), (2, 2, "5,7", ["5", "7", "5"]),
        (1, 2, "", ["1", "1", "1"]), (2, 4, "", ["2", "3", "2"]),
    ],
)  # fmt: skip
def test_encoders_take_what_engines_leave(taken: int, gpus: int, named: str, shown: list[str | None]) -> None:
    found = devices_of_encoders(3, taken, gpus, {"CUDA_VISIBLE_DEVICES": named})
    assert [each.get("CUDA_VISIBLE_DEVICES") for each in found] == shown
