"""Audio at the rate of OpenAI's clients, as audio at that of models."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from gateway.requests.resampling import Resampler


def tone(hertz: float, rate: int) -> npt.NDArray[np.float64]:
    """A second."""
    return np.asarray(20_000 * np.sin(2 * np.pi * hertz * np.arange(rate) / rate + 1))


def resampled(samples: npt.NDArray[np.float64], *cuts: int) -> npt.NDArray[np.int16]:
    resampler, pieces = Resampler(), np.split(np.rint(samples).astype("<i2"), cuts)
    return np.frombuffer(b"".join([*(resampler.add(piece.tobytes()) for piece in pieces), resampler.end()]), "<i2")


@pytest.mark.parametrize("hertz", [200, 1000, 3000, 6000])
def test_what_speech_has_is_kept(hertz: int) -> None:
    found = resampled(tone(hertz, 24_000))
    assert len(found) == pytest.approx(16_000, abs=2)
    assert np.abs(found[50:15_950] - tone(hertz, 16_000)[50:15_950]).max() < 60  # 0.3 %


def test_what_the_lower_rate_cannot_have_is_left_out() -> None:
    """Otherwise it would be heard as another tone."""
    assert np.abs(resampled(tone(10_000, 24_000))[50:15_950]).max() < 20


def test_pieces_of_any_length() -> None:
    samples = tone(440, 24_000)
    whole = resampled(samples)
    assert (resampled(samples, 1, 2, 3, 50, 51, 52, 5000) == whole).all()


def test_the_end_begins_anew() -> None:
    resampler, piece = Resampler(), np.rint(tone(440, 24_000)).astype("<i2").tobytes()
    first = resampler.add(piece) + resampler.end()
    assert resampler.add(piece) + resampler.end() == first
    assert resampler.end() == b""


def test_loud_audio_does_not_wrap_around() -> None:
    """A filter swings beyond the edges of a square wave."""
    found = resampled(np.where(np.arange(2400) % 300 < 150, 32_767.0, -32_768.0))
    place = np.arange(len(found)) % 200
    assert found[(place > 2) & (place < 97)].min() > 0 > found[(place > 102) & (place < 197)].max()
