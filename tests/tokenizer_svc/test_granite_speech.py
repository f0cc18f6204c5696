"""Audio prepared for Granite Speech is what Transformers' own feature extractor makes of its samples."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers.models.granite_speech import feature_extraction_granite_speech as theirs

from tests.support.audio_files import RATE, audio_file, sine
from tests.support.granite_speech_models import NUM_MELS, TOKEN, make_granite_speech
from tokenizer_svc.audio_processor import load_audio_processor
from tokenizer_svc.media_rejection import MediaRejection


class MelSpectrogram(torch.nn.Module):
    """What torchaudio has under that name, which is not installed."""

    def __init__(self, sample_rate: int, n_fft: int, win_length: int, hop_length: int, n_mels: int) -> None:
        super().__init__()
        self._fft: dict[str, Any] = {"n_fft": n_fft, "win_length": win_length, "hop_length": hop_length}
        greatest = 2595 * np.log10(1 + sample_rate / 2 / 700)
        edges = 700 * (10 ** (np.linspace(0, greatest, n_mels + 2) / 2595) - 1)
        frequencies = np.linspace(0, sample_rate / 2, n_fft // 2 + 1)[:, None]
        rising = (frequencies - edges[:-2]) / np.diff(edges)[:-1]
        falling = (edges[2:] - frequencies) / np.diff(edges)[1:]
        self._bands = torch.from_numpy(np.maximum(0, np.minimum(rising, falling))).float()

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        window = torch.hann_window(self._fft["win_length"])
        spectra = torch.stft(samples, **self._fft, window=window, pad_mode="reflect", return_complex=True)
        return (spectra.abs().square().transpose(-1, -2) @ self._bands).transpose(-1, -2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_granite_speech(tmp_path_factory.mktemp("granite"))


def test_lengths(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an odd or an even number of frames, and around the windows of the projector."""
    torchaudio = SimpleNamespace(transforms=SimpleNamespace(MelSpectrogram=MelSpectrogram))
    monkeypatch.setattr(theirs, "torchaudio", torchaudio, raising=False)
    monkeypatch.setattr(theirs, "requires_backends", lambda *_: None)
    own, extractor = load_audio_processor(folder), theirs.GraniteSpeechFeatureExtractor(n_mels=NUM_MELS)
    assert own is not None
    for length in (300, 320, 4_639, 4_640, 4_799, 4_960, 9_600, 16_000, 50_001):
        samples = sine(length / RATE + 0.001, seed=length)[:length]
        found, wanted = own.prepare(audio_file(samples, "wavf"), {}), extractor(samples)
        features = found.inputs["input_features"]
        assert features.shape == wanted["input_features"].shape
        assert np.abs(features - wanted["input_features"].numpy()).max() < 1e-4
        assert [found.num_tokens] == wanted["audio_embed_sizes"]
        assert found.text == TOKEN * found.num_tokens
        assert found.inputs["input_features_mask"].shape == features.shape[:2]


def test_the_shortest_and_the_longest(folder: Path) -> None:
    own = load_audio_processor(folder)
    assert own is not None
    assert own.prepare(audio_file(sine(0.005), "wavf"), {}).num_tokens == 0
    with pytest.raises(MediaRejection, match="longer than 600 s"):
        own.prepare(audio_file(np.zeros(601 * 4000, np.float32), "flac", 4000), {})
