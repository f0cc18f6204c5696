"""GPUs of engines, where there are several of both."""

from __future__ import annotations

import pytest

from quire.errors import StartupError
from quire.serve.devices import count_gpus, devices_of_engines


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
    found = devices_of_engines(engines, ranks, gpus, environment)
    assert found == [{"CUDA_VISIBLE_DEVICES": names} for names in expected]


@pytest.mark.parametrize(("engines", "gpus"), [(1, 4), (3, 0)])
def test_one_engine_and_engines_without_gpus_see_what_there_is(engines: int, gpus: int) -> None:
    assert devices_of_engines(engines, 1, gpus, {}) == [{}] * engines


def test_too_few_gpus_are_refused() -> None:
    with pytest.raises(StartupError, match=r"--engines 3 with --tensor-parallel-size 2 needs 6 .* shows 4. Start 2"):
        devices_of_engines(3, 2, 4, {})
    with pytest.raises(StartupError, match=r"--engines 2 with --tensor-parallel-size 8 .* Lower"):
        devices_of_engines(2, 8, 4, {})


def test_the_driver_is_asked() -> None:
    assert count_gpus() >= 0
