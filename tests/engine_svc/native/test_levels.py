"""A level is available if the processor has its instructions and the system lets a process use them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine_svc.native import instructions as detection
from engine_svc.native.instructions import instructions
from engine_svc.native.levels import LEVELS, available_levels

AVX2 = "fpu sse2 avx avx2 fma f16c bmi2"
AVX512 = f"{AVX2} avx512f avx512bw avx512vl avx512dq"
AMX = f"{AVX512} avx512_vnni avx512_bf16 amx_bf16 amx_tile amx_int8"
ASIMD, DOT = 1 << 1, 1 << 1 | 1 << 8 | 1 << 10 | 1 << 20
MATRIX, BF16 = 1 << 13, 1 << 14

Machine = Callable[..., tuple[str, ...]]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Machine]:
    """Returns a function that returns the levels of a made-up machine."""

    def levels(
        kind: str, cpuinfo: str = "", auxiliary: tuple[int, int] = (0, 0), tiles: bool = True
    ) -> tuple[str, ...]:
        instructions.cache_clear()
        (tmp_path / "cpuinfo").write_text(cpuinfo)
        monkeypatch.setattr(detection, "_CPUINFO", tmp_path / "cpuinfo")
        monkeypatch.setattr(detection, "_auxiliary", {16: auxiliary[0], 26: auxiliary[1]}.__getitem__)
        monkeypatch.setattr(detection, "_may_use_tiles", lambda: tiles)
        monkeypatch.setattr("platform.machine", lambda: kind)
        return available_levels()

    yield levels
    instructions.cache_clear()


@pytest.mark.parametrize(
    ("flags", "fastest"),
    [
        (AVX2, "avx2"), (AVX512, "avx512"), (f"{AVX512} avx512_vnni", "avx512_vnni"), (AMX, "amx"),
        # As written by gVisor, among others.
        (AMX.replace("_", ""), "amx"),
        # Alder Lake has VNNI only for AVX2, and Zen 5 has no tiles.
        (f"{AVX2} avx_vnni", "avx2"), (f"{AVX512} avx512_vnni avx512_bf16 avx_vnni", "avx512_bf16"),
    ],
)  # fmt: skip
def test_levels_of_x86(machine: Machine, flags: str, fastest: str) -> None:
    found = machine("x86_64", f"processor\t: 0\nflags\t\t: {flags}\nbugs\t\t:\n\nprocessor\t: 1\nflags\t\t: fpu\n")
    assert found == ("avx2", "avx512", "avx512_vnni", "avx512_bf16", "amx")[: len(found)]
    assert found[-1] == fastest


def test_tiles_need_the_systems_leave(machine: Machine) -> None:
    assert machine("x86_64", f"flags: {AMX}", tiles=False)[-1] == "avx512_bf16"


@pytest.mark.parametrize(
    ("auxiliary", "fastest"),
    [
        ((ASIMD, 0), "neon"), ((DOT, 0), "neon_dotprod"),
        ((DOT, BF16 | MATRIX), "neon_bf16"), ((DOT, BF16), "neon_dotprod"),
        ((ASIMD | 1 << 20, 0), "neon"),
    ],
)  # fmt: skip
def test_levels_of_arm(machine: Machine, auxiliary: tuple[int, int], fastest: str) -> None:
    # An emulator may show the cpuinfo of the machine that it runs on.
    assert machine("aarch64", f"flags: {AMX}", auxiliary)[-1] == fastest


def test_other_processors_have_none(machine: Machine) -> None:
    assert machine("x86_64") == machine("x86_64", "flags: fpu sse2 avx") == machine("aarch64") == ()
    assert machine("riscv64", f"flags: {AMX}") == ()


def test_another_system_has_none(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    assert machine("arm64", auxiliary=(ASIMD, 0)) == ()


def test_a_level_has_all_of_those_below_it() -> None:
    for kind in ("x86_64", "aarch64"):
        needs = [level.instructions for level in LEVELS.values() if level.machine == kind]
        assert needs == sorted(needs, key=len)
        assert all(lower < higher for lower, higher in itertools.pairwise(needs))
