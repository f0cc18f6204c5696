"""Audio prepared for a model is what Transformers' own processor makes of its samples."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers

from quire.media import filled_up
from tests.support.audio_files import RATE, Samples, audio_file, sine
from tests.support.audio_processors import AUDIO_FAMILIES, CHUNK_SECONDS, NUM_MELS, save_audio_processor
from tests.support.folders import FolderOf, made_once
from tokenizer_svc.audio_processor import AudioProcessor, load_audio_processor
from tokenizer_svc.audio_settings import DEFAULTS, read_audio_settings
from tokenizer_svc.log_mel import LogMel
from tokenizer_svc.media_rejection import MediaRejection
from tokenizer_svc.processed import Processed

CHUNK = CHUNK_SECONDS * RATE
# Around frames, the window's half, tokens, chunks and Qwen3-ASR's least length.
LENGTHS = [
    1, 2, 159, 160, 161, 199, 200, 201, 320, 321, 481, 800, 1601, 7_999, 8_000, 8_001, 15_999, 16_000, 16_160, 16_321,
    CHUNK - 161, CHUNK - 1, CHUNK, CHUNK + 1, CHUNK + 160, CHUNK + 161, CHUNK + 801, 2 * CHUNK, 2 * CHUNK + 1,
    3 * CHUNK - 100, 4 * CHUNK + 12_345,
]  # fmt: skip
SINGLE = ("qwen2_audio", "whisper")  # those that take one chunk


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> FolderOf:
    return made_once(tmp_path_factory, save_audio_processor)


def loaded(folder: Path) -> AudioProcessor:
    found = load_audio_processor(folder)
    assert found is not None
    return found


def wav(samples: Samples) -> bytes:
    return audio_file(samples, "wavf")


def by_transformers(processor: Any, samples: Samples) -> tuple[str, dict[str, Any]]:
    """The text in place of the placeholder, and the inputs."""
    if isinstance(processor, transformers.WhisperProcessor):  # which writes no prompts
        extractor = processor.feature_extractor
        found = extractor(samples, sampling_rate=RATE, return_tensors="np", return_attention_mask=True)
        return token_of(processor) * filled_up(extractor.nb_max_frames // 2), dict(found)
    found = processor(text=[processor.audio_token], audio=[samples], sampling_rate=RATE, return_tensors="pt")
    return processor.tokenizer.decode(found["input_ids"][0]), {name: each.numpy() for name, each in found.items()}


def token_of(processor: Any) -> str:
    """The token that the prompt has for each embedding."""
    whisper = isinstance(processor, transformers.WhisperProcessor)
    return AUDIO_FAMILIES["whisper"].token if whisper else processor.audio_token


def check(found: Processed, text: str, inputs: dict[str, Any], tolerance: float = 1e-4) -> None:
    assert found.text == text
    features, mask_name = found.inputs["input_features"], next(name for name in found.inputs if name.endswith("mask"))
    assert set(found.inputs) == {"input_features", mask_name}
    assert (features.dtype.name, found.inputs[mask_name].dtype.name) == ("float32", "bool")
    assert features.shape == inputs["input_features"].shape
    assert np.abs(features - inputs["input_features"]).max() < tolerance
    wanted = inputs["attention_mask" if mask_name not in inputs else mask_name]
    assert np.array_equal(found.inputs[mask_name], wanted.astype(np.bool_))


@pytest.mark.parametrize("family", AUDIO_FAMILIES)
def test_lengths(folder_of: FolderOf, family: str) -> None:
    own, reference = loaded(folder_of(family)), transformers.AutoProcessor.from_pretrained(folder_of(family))
    for length in LENGTHS:
        if family in SINGLE and length > CHUNK:
            continue
        samples = sine(length / RATE + 0.001, seed=length)[:length]
        found = own.prepare(wav(samples), {})
        check(found, *by_transformers(reference, samples))
        assert found.num_tokens == found.text.count(token_of(reference))
        assert found.seconds == length / RATE
        assert (found.pixel_scale, found.pixel_shift) == ((), ())
    assert own.token_id == reference.tokenizer.convert_tokens_to_ids(token_of(reference))


@pytest.mark.parametrize("family", AUDIO_FAMILIES)
def test_kinds_of_sound(folder_of: FolderOf, family: str) -> None:
    """Silence, clicks, noise, and what is quiet for a while, of which the greatest value matters."""
    own, reference = loaded(folder_of(family)), transformers.AutoProcessor.from_pretrained(folder_of(family))
    random = np.random.default_rng(1)
    clicks = np.zeros(CHUNK, np.float32)
    clicks[::5000] = 1.0
    quiet = sine(CHUNK_SECONDS)
    quiet[: CHUNK // 2] *= 1e-5
    noise = random.uniform(-1, 1, CHUNK).astype(np.float32)
    for samples in (np.zeros(CHUNK, np.float32), clicks, quiet, noise, 100 * noise):
        check(own.prepare(wav(samples), {}), *by_transformers(reference, samples))


def test_spectrograms_of_the_usual_size() -> None:
    samples = np.pad(sine(3.0), (0, 27 * RATE))
    for mels in (80, 128):
        extractor = transformers.WhisperFeatureExtractor(feature_size=mels)
        wanted = extractor(samples, sampling_rate=RATE, return_tensors="np")["input_features"][0]
        found = LogMel(mels, RATE, 400, 160).of(samples)
        assert found.dtype == np.float32
        assert found.shape == wanted.shape == (mels, 3000)
        assert np.abs(found - wanted).max() < 1e-4


def test_spectrograms_are_made_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = LogMel(NUM_MELS, RATE, 400, 160).of(sine(1.0))
    monkeypatch.setattr("tokenizer_svc.log_mel._FRAMES_AT_ONCE", 7)
    assert np.allclose(LogMel(NUM_MELS, RATE, 400, 160).of(sine(1.0)), whole, atol=1e-6)


@pytest.mark.parametrize(
    ("family", "wrapped"),
    [
        ("qwen2_audio", "<|audio_bos|><|AUDIO|><|audio_eos|>"), ("audioflamingo3", "<sound>"),
        ("glmasr", "<|begin_of_audio|><|pad|><|end_of_audio|>"),
        ("qwen3_asr", "<|audio_start|><|audio_pad|><|audio_end|>"),
    ],
)  # fmt: skip
def test_what_templates_write(folder_of: FolderOf, family: str, wrapped: str) -> None:
    own, reference = loaded(folder_of(family)), transformers.AutoProcessor.from_pretrained(folder_of(family))
    assert own.placeholder == reference.audio_token == AUDIO_FAMILIES[family].token
    assert own.wrapped == wrapped
    message = [{"role": "user", "content": [{"type": "audio"}, {"type": "text", "text": "Say it."}]}]
    rendered = reference.tokenizer.apply_chat_template(message, chat_template=reference.chat_template, tokenize=False)
    assert f"{wrapped}{chr(10) if family == 'qwen2_audio' else ''}Say it." in rendered


@pytest.mark.parametrize(("family", "most"), [("qwen2_audio", 2), ("glmasr", 654), ("whisper", 2)])
def test_the_longest(folder_of: FolderOf, family: str, most: int) -> None:
    """GLM-ASR's 655 s are not a whole number of chunks, and Transformers would leave out the rest."""
    own = loaded(folder_of(family))
    assert own.prepare(audio_file(np.zeros(most * RATE, np.float32), "flac"), {}).seconds == most
    with pytest.raises(MediaRejection, match=f"The audio is longer than {most} s, the most that this model takes"):
        own.prepare(audio_file(np.zeros((most + 1) * RATE, np.float32), "flac"), {})


def test_the_longest_of_published_models(tmp_path: Path) -> None:
    wanted = {"Qwen2Audio": 30, "AudioFlamingo3": 600, "GlmAsr": 630, "Qwen3ASR": 900, "Whisper": 30}
    for family, kind in AUDIO_FAMILIES.items():
        save_audio_processor(tmp_path / family, family)
        file = tmp_path / family / "processor_config.json"
        fields = json.loads(file.read_text())
        fields["feature_extractor"]["chunk_length"] = 30
        file.write_text(json.dumps(fields))
        assert loaded(tmp_path / family)._max_seconds() == wanted[kind.name]


@pytest.mark.parametrize("mels", [80, 128])
def test_published_whisper_models(folder_of: FolderOf, tmp_path: Path, mels: int) -> None:
    """They have a preprocessor file only, and 1500 embeddings for any recording, filled up to whole blocks."""
    shutil.copytree(folder_of("whisper"), tmp_path, dirs_exist_ok=True)
    (tmp_path / "processor_config.json").unlink()
    extractor = transformers.WhisperFeatureExtractor(feature_size=mels)
    fields = json.loads(extractor.to_json_string()) | {"processor_class": "WhisperProcessor"}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(fields))
    own = loaded(tmp_path)
    assert own.wrapped == own.placeholder == "<|startoflm|>"
    for seconds in (0.5, 30.0):
        found = own.prepare(wav(sine(seconds)), {})
        assert (found.num_tokens, found.text) == (1536, "<|startoflm|>" * 1536)
        assert found.inputs["input_features"].shape == (1, mels, 3000)
        assert found.inputs["input_features_mask"].sum() == 100 * seconds
        wanted = extractor(sine(seconds), sampling_rate=RATE, return_tensors="np")["input_features"]
        assert np.abs(found.inputs["input_features"] - wanted).max() < 1e-4


def test_settings_of_requests_are_refused(folder_of: FolderOf) -> None:
    with pytest.raises(MediaRejection, match=r"'sampling_rate' in mm_processor_kwargs is no setting for au") as caught:
        loaded(folder_of("glmasr")).prepare(wav(sine(0.1)), {"sampling_rate": 8000})
    assert caught.value.parameter == "mm_processor_kwargs"


def test_where_settings_come_from(tmp_path: Path, folder_of: FolderOf) -> None:
    """From either file, with those of the feature extractor at the top or apart."""
    assert read_audio_settings(tmp_path) is None
    first, second = tmp_path / "processor_config.json", tmp_path / "preprocessor_config.json"
    second.write_text(json.dumps({"processor_class": "Qwen2AudioProcessor", "feature_size": 128, "chunk_length": None}))
    found = read_audio_settings(tmp_path)
    assert found is not None
    assert (found.feature_size, found.chunk_length, found.audio_token) == (128, 30, "<|AUDIO|>")
    part = {"feature_size": 16, "sampling_rate": 8000, "hop_length": 80, "n_fft": 200, "min_length": 5, "n_mels": 3}
    first.write_text(json.dumps({"feature_extractor": part, "max_audio_len": 90, "audio_token": "<a>"}))
    found = read_audio_settings(tmp_path)
    assert found is not None
    assert (found.feature_size, found.sampling_rate, found.hop_length, found.n_fft) == (16, 8000, 80, 200)
    assert (found.min_length, found.max_audio_len, found.audio_token) == (5, 90, "<a>")
    second.write_text(json.dumps({"processor_class": "Qwen2VLProcessor"}))
    assert read_audio_settings(tmp_path) is None
    assert load_audio_processor(tmp_path) is None
    for wrong in ("[]", "{"):
        second.write_text(wrong)
        with pytest.raises(ValueError, match=r"preprocessor_config\.json|Expecting"):
            read_audio_settings(tmp_path)
    assert read_audio_settings(folder_of("qwen3_asr")) is not None


def test_defaults_are_those_of_transformers() -> None:
    for kind in AUDIO_FAMILIES.values():
        own, is_qwen3 = DEFAULTS[f"{kind.name}Processor"], kind.name == "Qwen3ASR"
        extractor = transformers.Qwen3ASRFeatureExtractor() if is_qwen3 else transformers.WhisperFeatureExtractor()
        for name in ("feature_size", "sampling_rate", "hop_length", "n_fft", "chunk_length"):
            assert getattr(own, name) == getattr(extractor, name)
        assert own.min_length == getattr(extractor, "min_length", 0)


def test_a_folder_with_a_preprocessor_file_only(folder_of: FolderOf, tmp_path: Path) -> None:
    """As older models are published."""
    for family in AUDIO_FAMILIES:
        folder = tmp_path / family
        shutil.copytree(folder_of(family), folder)
        fields = json.loads((folder / "processor_config.json").read_text())
        flat = fields["feature_extractor"] | {"processor_class": fields["processor_class"]}
        (folder / "preprocessor_config.json").write_text(json.dumps(flat))
        (folder / "processor_config.json").unlink()
        samples = sine(1.3)
        found, wanted = (loaded(each).prepare(wav(samples), {}) for each in (folder, folder_of(family)))
        assert found.text == wanted.text
        assert np.array_equal(found.inputs["input_features"], wanted.inputs["input_features"])


def test_a_tokenizer_without_the_token(folder_of: FolderOf, tmp_path: Path) -> None:
    shutil.copytree(folder_of("glmasr"), tmp_path, dirs_exist_ok=True)
    file = tmp_path / "processor_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"audio_token": "<unknown>"}))
    with pytest.raises(ValueError, match="the tokenizer has no token <unknown>"):
        load_audio_processor(tmp_path)


def test_a_process_does_without_torch_pillow_and_threads(folder_of: FolderOf) -> None:
    script = """
import os, sys
from pathlib import Path
import tokenizer_svc.media_process as media_process
assert "numpy" not in sys.modules  # so that the number of threads can still be chosen
sys.modules["torch"] = sys.modules["PIL"] = None
os.environ["OPENBLAS_NUM_THREADS"] = "1"
from tokenizer_svc.child import Message
file = sys.stdin.buffer.read()
for folder in sys.argv[1:]:
    answer = media_process.make(Message({"folder": folder}))
    threads = len(list(Path("/proc/self/task").iterdir()))
    found = answer(Message({"kind": "audio", "settings": {}, "reading": {}, "sizes": [len(file)]}, file))
    assert found.fields["num_tokens"], (folder, found.fields)
    assert len(list(Path("/proc/self/task").iterdir())) == threads, folder
"""
    folders = [folder_of(family) for family in AUDIO_FAMILIES]
    subprocess.run([sys.executable, "-c", script, *folders], input=wav(sine(0.5)), check=True)
