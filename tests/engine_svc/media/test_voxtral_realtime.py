"""Voxtral Realtime's greedy float32 output equals Transformers', token for token, to the end of each recording."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from msgspec.structs import replace

from engine_svc.media.base import tensor_of
from engine_svc.requests.outputs import FinishReason
from engine_svc.requests.request import GenerationRequest, RequestLimits
from engine_svc.requests.validation import validate
from quire.errors import InvalidRequest, StartupError
from quire.images import Image
from quire.media import MediaKind
from tests.support.audio_files import audio_file, sine
from tests.support.mistral_media import as_mistrals, make_mistral_model, mistral_request
from tests.support.run_engine import GREEDY, outcomes, run_requests, running_engine, tokens

FAMILY = "voxtral_realtime"
DELAY = 2  # tokens, as tekken.json has it
UNLIMITED = replace(GREEDY, max_tokens=None)
RECORDINGS = [audio_file(sine(seconds, 300 + 500 * seconds), "wavf") for seconds in (0.03, 1.7, 0.72)]


def request_for(folder: Path, recording: bytes, sampling: Any = UNLIMITED) -> GenerationRequest:
    messages = [{"role": "user", "content": [{"type": "audio"}]}]
    return mistral_request(folder, messages, [recording], sampling, MediaKind.AUDIO, transcription="")


def reference(folder: Path, request: GenerationRequest) -> list[int]:
    """The likeliest text in float64."""
    model = transformers.VoxtralRealtimeForConditionalGeneration.from_pretrained(folder, dtype=torch.float64).eval()
    ids = torch.tensor([list(request.prompt_token_ids)])
    features = tensor_of(request.images[0].inputs[0], torch.device("cpu")).double()
    with torch.inference_mode():
        output = model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), input_features=features, num_delay_tokens=DELAY,
            do_sample=False, eos_token_id=None, pad_token_id=0, max_new_tokens=1000,
        )  # fmt: skip
    return output[0, ids.shape[1] :].tolist()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_mistral_model(tmp_path_factory.mktemp("model"), FAMILY)


@pytest.fixture(scope="module")
def requests(folder: Path) -> list[GenerationRequest]:
    return [request_for(folder, recording) for recording in RECORDINGS]


@pytest.fixture(scope="module")
def expected(folder: Path, requests: list[GenerationRequest]) -> list[list[int]]:
    return [reference(folder, request) for request in requests]


@pytest.fixture
def few_frames(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Recordings are encoded in parts, some of them shorter than the encoder's window."""
    monkeypatch.setattr("engine_svc.media.audio._FRAMES_AT_ONCE", 24)
    return


@pytest.mark.parametrize(
    "options",
    [{}, {"max_num_batched_tokens": 4, "max_num_seqs": 4, "block_size": 4}, {"cpu_kernels": "torch"}],
    ids=str,
)
def test_answers(
    folder: Path, requests: list[GenerationRequest], expected: list[list[int]], options: dict[str, Any]
) -> None:
    with running_engine(folder, **options) as engine:
        for _ in range(2):
            found = run_requests(engine, requests)
            assert tokens(found) == expected
            assert {choices[0].finish_reason for choices in found} == {FinishReason.STOP}


def test_mistrals_own_files(
    folder: Path, tmp_path: Path, requests: list[GenerationRequest], expected: list[list[int]], few_frames: None
) -> None:
    with running_engine(as_mistrals(folder, tmp_path / "mistral", FAMILY)) as engine:
        assert tokens(run_requests(engine, requests)) == expected


def test_a_text_may_be_shorter(folder: Path, expected: list[list[int]]) -> None:
    request = request_for(folder, RECORDINGS[1], replace(GREEDY, max_tokens=5))
    with running_engine(folder) as engine:
        ((choice,),) = run_requests(engine, [request])
    assert (choice.token_ids, choice.finish_reason) == (expected[1][:5], FinishReason.LENGTH)


def test_preempted_sequences_go_on_hearing(folder: Path, expected: list[list[int]]) -> None:
    request = request_for(folder, RECORDINGS[1], replace(UNLIMITED, n=3))
    with running_engine(folder, num_blocks=16, block_size=4, max_num_batched_tokens=16) as engine:
        (choices,) = run_requests(engine, [request])
    assert any(choice.usage and choice.usage.preemptions for choice in choices)
    assert [choice.token_ids for choice in choices] == [expected[1]] * 3


def test_the_delay_is_part_of_the_model(
    folder: Path, tmp_path: Path, requests: list[GenerationRequest], expected: list[list[int]]
) -> None:
    copied = make_mistral_model(tmp_path / "copied", FAMILY)
    tekken = json.loads((copied / "tekken.json").read_text())
    tekken["audio"]["transcription_delay_ms"] = 800.0
    (copied / "tekken.json").write_text(json.dumps(tekken))
    with running_engine(copied) as engine:
        assert tokens(run_requests(engine, requests[1:2])) != expected[1:2]
    (copied / "tekken.json").unlink()
    with pytest.raises(StartupError, match=r"tekken.json cannot be read: FileNotFoundError.*transcription_delay_ms"):
        running_engine(copied).__enter__()
    with pytest.raises(StartupError, match="audio=0: the model does nothing without audio"):
        running_engine(folder, limit_mm_per_prompt="audio=0").__enter__()


def _without_recording(request: GenerationRequest) -> dict[str, Any]:
    return {"images": ()}


def _too_long(request: GenerationRequest) -> dict[str, Any]:
    ids = [*request.prompt_token_ids] * 7
    return {"prompt_token_ids": ids, "images": (request.images[0].at(1, len(ids) - 1),)}


def _two(request: GenerationRequest) -> dict[str, Any]:
    (image,) = request.images
    return {"images": (image.at(1, 2), image.at(3, 3))}


@pytest.mark.parametrize("change", [_without_recording, _too_long, _two])
def test_other_prompts_are_refused(requests: list[GenerationRequest], change: Any) -> None:
    limits = RequestLimits(("m",), 3000, 2048, 20, "fcfs", accepts_media=True, frames_per_token=8)
    validate(requests[1], limits)
    request = requests[1]
    changed = GenerationRequest("r", **({
        "prompt_token_ids": request.prompt_token_ids, "sampling": UNLIMITED, "images": request.images,
    } | change(request)))  # fmt: skip
    with pytest.raises(InvalidRequest, match="writes down one recording while it hears it"):
        validate(changed, limits)


def test_frames_must_be_those_of_whole_tokens(folder: Path, requests: list[GenerationRequest]) -> None:
    (image,) = requests[1].images
    features, mask = image.inputs
    frames = image.num_frames - 1
    features = type(features)(features.name, "float32", (1, 16, frames), features.data[: 16 * frames * 4])
    mask = type(mask)(mask.name, "bool", (1, frames), mask.data[:frames])
    wrong = Image(1, image.num_tokens, (features, mask))
    request = GenerationRequest("r", requests[1].prompt_token_ids, UNLIMITED, images=(wrong,))
    with running_engine(folder) as engine:
        ((_, error),) = outcomes(engine, [request])
    assert "the encoder takes float32 [1, 16, n * 8]" in str(error)
