"""What Gemma 3n reads of audio."""

from __future__ import annotations

import inspect
from pathlib import Path

import numpy as np
import pytest
import transformers

from quire.images import FEATURES
from tests.support.audio_files import RATE, audio_file, sine
from tests.support.gemma3n_models import AUDIO_TOKENS, MARKS, save_gemma3n_processor
from tokenizer_svc.audio_processor import AudioProcessor, load_audio_processor
from tokenizer_svc.audio_settings import DEFAULTS
from tokenizer_svc.child import Message
from tokenizer_svc.media_process import make
from tokenizer_svc.media_rejection import MediaRejection


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("gemma3n")
    save_gemma3n_processor(made)
    return made


@pytest.fixture
def hearing(folder: Path) -> AudioProcessor:
    found = load_audio_processor(folder)
    assert found is not None
    return found


def test_all_audio_has_as_many_tokens(folder: Path, hearing: AudioProcessor) -> None:
    """Around what makes a frame, and the 128 samples to whose multiples audio is filled up."""
    extractor = transformers.Gemma3nAudioFeatureExtractor.from_pretrained(folder)
    for length in (1, 512, 513, 2_048, 2_049, 16_000):
        samples = sine(length / RATE + 0.001, seed=length)[:length]
        found, wanted = hearing.prepare(audio_file(samples, "wavf"), {}), extractor([samples], return_tensors="np")
        for name in (FEATURES, "input_features_mask"):
            assert np.array_equal(found.inputs[name], wanted[name])
        if length < 513:  # which is refused
            assert not found.num_tokens
            continue
        assert found.num_tokens == AUDIO_TOKENS + 1
        heard = AUDIO_TOKENS * MARKS["audio_token"]
        assert found.text == f"\n\n{MARKS['boa_token']}{heard}{MARKS['eoa_token']}\n\n"
    with pytest.raises(MediaRejection, match="longer than 30 s"):
        hearing.prepare(audio_file(np.zeros(31 * RATE, np.float32), "flac"), {})


def test_the_token_that_ends_an_audio_is_the_encoders_too(folder: Path) -> None:
    """And images are not read."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    audio, end = tokenizer.convert_tokens_to_ids([MARKS["audio_token"], MARKS["eoa_token"]])
    facts = make(Message({"folder": str(folder)}))(Message()).fields
    assert facts["marks"] == {"audio": [MARKS["audio_token"], MARKS["audio_token"], audio]}
    assert facts["mark_ids"] == {"audio": [end]}


def test_defaults_are_those_of_transformers() -> None:
    extractor, own = transformers.Gemma3nAudioFeatureExtractor(), DEFAULTS["Gemma3nProcessor"]
    assert (own.feature_size, own.sampling_rate) == (extractor.feature_size, extractor.sampling_rate)
    count = inspect.signature(transformers.Gemma3nProcessor.__init__).parameters["audio_seq_length"].default
    assert own.audio_seq_length == count == transformers.Gemma3nConfig().audio_soft_tokens_per_image
