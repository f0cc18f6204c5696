"""Recordings are cut where they are quiet, and lose nothing."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from quire.pcm import Pcm, piece_ends
from tests.support.audio_files import RATE

WINDOW = RATE // 10


def noise(seconds: float, seed: int = 0) -> Pcm:
    return np.random.default_rng(seed).integers(-9000, 9000, int(seconds * RATE), np.int16)


def lengths(ends: list[int]) -> list[int]:
    return [end - start for start, end in itertools.pairwise([0, *ends])]


@pytest.mark.parametrize(("most", "last"), [(2, 0.5), (4, 1.0), (30, 1.0), (900, 1.0)])
def test_pieces_are_almost_as_long_as_they_may_be(most: int, last: float) -> None:
    samples = noise(2.7 * most)
    ends = piece_ends(samples, RATE, most)
    *others, final = lengths(ends)
    assert ends[-1] == len(samples)
    assert len(others) in (2, 3)
    assert all((most - last) * RATE <= each <= most * RATE for each in others)
    assert 0 < final <= most * RATE


def test_cuts_are_in_the_middle_of_the_quietest_place() -> None:
    samples = noise(25.0)
    # The first is too far from the limit; of those in the last second before it, the second is the quietest.
    samples[7 * RATE : 8 * RATE] = 0
    samples[int(9.3 * RATE) : int(9.3 * RATE) + WINDOW] //= 10
    samples[int(9.6 * RATE) : int(9.6 * RATE) + WINDOW] //= 100
    samples[int(18.9 * RATE) : int(18.9 * RATE) + WINDOW] = 0
    assert piece_ends(samples, RATE, 10) == [int(9.65 * RATE), int(18.95 * RATE), 25 * RATE]


def test_a_cut_in_silence_is_as_late_as_it_can_be() -> None:
    silence = np.zeros(25 * RATE, np.int16)
    assert lengths(piece_ends(silence, RATE, 10)) == [int(9.95 * RATE), int(9.95 * RATE), int(5.1 * RATE)]


def test_the_loudest_samples() -> None:
    """Their squares do not fit in their own kind of number."""
    samples = np.full(3 * RATE, -(2**15), np.int16)
    samples[int(1.8 * RATE) : int(1.8 * RATE) + WINDOW] = 2**14
    assert piece_ends(samples, RATE, 2) == [int(1.85 * RATE), 3 * RATE]


def test_the_last_piece_is_not_tiny() -> None:
    silence = np.zeros(int(19.95 * RATE) + 1, np.int16)  # after the first piece, what is left is hardly too long
    first, second, last = lengths(piece_ends(silence, RATE, 10))
    assert (first, last) == (int(9.95 * RATE), 1.5 * WINDOW)
    assert second == 10 * RATE + 1 - last


def test_what_needs_no_cut() -> None:
    assert piece_ends(noise(2.0), RATE, 2) == [2 * RATE]
