"""The sampling kernel against its definition in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine_svc.kernels import sampling
from engine_svc.kernels.sampling import draw
from engine_svc.sampling import truncation
from engine_svc.sampling.noise import exponentials, row_keys
from engine_svc.sampling.stages import thinking_budget


def defined(
    logits: torch.Tensor, temperature: float, top_k: int, top_p: float, min_p: float, keys: torch.Tensor
) -> tuple[int, set[int]]:
    """Returns (the drawn token, all kept tokens) of one row."""
    weights = ((logits.double() - logits.max()) / temperature).exp()
    weights[weights < min_p] = 0
    order = weights.sort(descending=True, stable=True).indices
    if top_k:
        weights[order[top_k:]] = 0
    ordered = weights[order] / weights.sum()
    if top_p < 1:
        beyond = ordered.cumsum(0) - ordered >= top_p
        beyond[0] = False
        weights[order[beyond]] = 0
    token = int((weights / exponentials(keys[None], torch.arange(len(weights)))[0]).argmax())
    return token, set(weights.nonzero()[:, 0].tolist())


@pytest.mark.parametrize(
    ("size", "most"), [(5, 8192), *(pytest.param(150, most, marks=pytest.mark.slow) for most in (8192, 8))]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_draws_as_defined(monkeypatch: pytest.MonkeyPatch, size: int, most: int, dtype: torch.dtype) -> None:
    """In bfloat16, many logits are equal, on both sides of the cutoff. Covers several chunks, and more kept tokens than
    a list holds.
    """
    for name, value in (("_TILE", 64), ("_CHUNK_TILES", 1), ("_MOST", most)):
        monkeypatch.setattr(sampling, name, value)
    check_draws(size, dtype, "cpu")


def check_draws(size: int, dtype: torch.dtype, device: str) -> None:
    """Compares rows with all combinations of limits."""
    generator = torch.Generator().manual_seed(size)
    rows = 20
    logits = (torch.randn(rows, size, generator=generator) * 3).to(dtype).float()
    temperature = torch.rand(rows, generator=generator) + 0.3
    top_k = torch.randint(0, 12, (rows,), generator=generator) * (torch.arange(rows) % 2)
    top_p = torch.where(torch.arange(rows) % 4 < 2, torch.rand(rows, generator=generator), 1.0)
    min_p = torch.where(torch.arange(rows) % 5 == 0, 0.05, 0.0)
    noise = keys(rows)
    found = draw(*(each.to(device) for each in (logits, temperature, top_k, top_p, min_p, noise))).tolist()
    same = 0
    for row, token in enumerate(found):
        options = (temperature, top_k, top_p, min_p)
        expected, kept = defined(logits[row], *(each[row].item() for each in options), noise[row])  # type: ignore[arg-type]
        assert token in kept
        same += token == expected
    assert same >= rows - 1  # except rounding at a boundary


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """For vocabularies of a few tokens: the interpreter spends time on the empty part of a tile, too."""
    monkeypatch.setattr(sampling, "_TILE", 16)


def keys(rows: int) -> torch.Tensor:
    """Returns random keys of the first positions for one seed."""
    return torch.from_numpy(row_keys(np.full(rows, 3, np.uint64), np.arange(rows, dtype=np.uint64)))


def column(value: float, rows: int) -> torch.Tensor:
    return torch.full((rows,), value)


@pytest.mark.slow
@pytest.mark.usefixtures("small_tiles")
def test_every_token_that_is_kept_can_be_drawn_and_no_other() -> None:
    weights = torch.tensor([1.0, 2.0, 1.5, 2.0, 0.8, 1.5, 1.5])

    def drawn(top_k: int, top_p: float, min_p: float = 0.0, rows: int = 16) -> set[int]:
        """Draws in just enough rows to see the least likely token, or one token too many: the interpreter is slow."""
        logits = weights.repeat(rows, 1)
        ks = torch.full((rows,), top_k) if top_k else None
        ps, floors = column(top_p, rows) if top_p < 1 else None, column(min_p, rows) if min_p else None
        return set(draw(logits, column(1.0, rows), ks, ps, floors, keys(rows)).tolist())

    assert drawn(1, 1.0, rows=6) == {1}
    assert drawn(0, 1e-6, rows=6) == {1}
    assert drawn(4, 1.0) == {1, 2, 3, 5}
    assert drawn(2, 0.6) == {1, 3}
    assert drawn(2, 0.5, rows=6) == {1}
    assert drawn(0, 1.0, rows=26) == set(range(7))
    assert drawn(9, 1.0, rows=26) == set(range(7))
    assert drawn(0, 1.0, 0.35, rows=26) == {0, 1, 2, 3, 5, 6}


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter computes with numpy, which warns of them
def test_what_cannot_be_drawn_stays_in_the_vocabulary() -> None:
    logits = torch.zeros(3, 10)
    logits[0], logits[1, 4], logits[2, :] = torch.nan, torch.inf, -torch.inf
    found = draw(logits, column(1.0, 3), torch.tensor([3, 0, 0]), column(0.5, 3), column(0.0, 3), keys(3))
    assert ((found >= 0) & (found < 10)).all()


@pytest.mark.usefixtures("small_tiles")
def test_far_logits_and_low_temperatures() -> None:
    logits = torch.tensor([[-torch.inf, -1e30, 5.0, 4.0, 1e30]]).repeat(2, 1)
    none = torch.zeros(2, dtype=torch.int64)
    found = draw(logits, column(1e-5, 2), none, column(0.9, 2), column(0.0, 2), keys(2))
    assert set(found.tolist()) == {4}


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("temperature", [1e-5, 1.0, 2.0])
def test_what_is_certain_is_drawn(temperature: float) -> None:
    """A token forced by the thinking budget wins over the greatest logits that penalties can produce."""
    logits = torch.randn(4, 70, generator=torch.Generator().manual_seed(0))
    logits[:, 3], logits[:, 66] = 1e30, thinking_budget.CERTAIN
    ks, ps = torch.tensor([0, 1, 0, 5]), torch.tensor([1.0, 1.0, 0.3, 0.9])
    noise = keys(4)
    for top_k, top_p in ((None, None), (ks, ps)):
        found = draw(logits, torch.full((4,), temperature), top_k, top_p, None, noise)
        assert found.tolist() == [66] * 4
        on_a_cpu = truncation.draw(logits, torch.full((4,), temperature), top_k, top_p, None, noise)
        assert on_a_cpu.tolist() == [66] * 4
