"""Whisper's greedy float32 output equals Transformers', token for token, however the work is split and computed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from engine_svc.ops.triton import InvariantTritonOps, TritonOps
from engine_svc.requests.request import RequestLimits
from engine_svc.requests.validation import validate
from engine_svc.runner.native_calls import NotedSteps
from engine_svc.runner.runner import Runner
from quire.errors import InvalidRequest, StartupError
from tests.support.folders import FolderOf, made_once
from tests.support.native import needs_native
from tests.support.pooled_models import change_config
from tests.support.recorder import Recorder, record_prompts
from tests.support.run_engine import GREEDY, outcomes, run_requests, running_engine, tokens
from tests.support.vision_models.conversations import with_inputs
from tests.support.whisper_models import (
    ENCODED,
    ROWS,
    make_whisper_model,
    spectrogram,
    whisper_reference,
    whisper_request,
)

ANSWER = 12
SAMPLING = replace(GREEDY, max_tokens=ANSWER)
# Recordings, and the texts to go on with: one token, several, and more than a step may have.
CASES = [(spectrogram(seed), [5, 9, 60 + seed, *range(30, 30 + length)]) for seed, length in enumerate((0, 2, 20))]
IN_CHUNKS: dict[str, Any] = {"max_num_batched_tokens": 7, "max_num_seqs": 4, "block_size": 4}


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> FolderOf:
    return made_once(tmp_path_factory, make_whisper_model)


@pytest.fixture(scope="module")
def folder(folder_of: FolderOf) -> Path:
    return folder_of("whisper")


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[list[int]]:
    return [whisper_reference(folder, features, text, ANSWER) for features, text in CASES]


@pytest.mark.parametrize(
    "options",
    [
        {}, IN_CHUNKS, {"cpu_kernels": "torch"}, {"attention_backend": "reference"}, {"attention_backend": "cpu"},
        {"disable_chunked_mm_input": True, "max_num_batched_tokens": 140},
        pytest.param({"pipeline_parallel_size": 2, "max_num_batched_tokens": 60}, marks=pytest.mark.slow),
        pytest.param({"tensor_parallel_size": 2}, marks=pytest.mark.slow),
    ],
    ids=str,
)  # fmt: skip
def test_answers(folder: Path, expected: list[list[int]], options: dict[str, Any]) -> None:
    """Together and in chunks that split recordings, with and without what the prefix cache has of them."""
    requests = [whisper_request(*case, SAMPLING) for case in CASES]
    with running_engine(folder, **options) as engine:
        assert tokens(run_requests(engine, requests)) == expected
        again = run_requests(engine, requests)
        assert tokens(again) == expected
        assert all(choices[0].usage and choices[0].usage.cached_prompt_tokens for choices in again)


def test_another_text_about_a_recording_shares_all_of_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    features, _ = CASES[0]
    with running_engine(folder) as engine:
        run_requests(engine, [whisper_request(features, [5], SAMPLING)])
        monkeypatch.setattr("engine_svc.media.audio.AudioEncoder.encode", None)
        (choices,) = run_requests(engine, [whisper_request(features, [7, 8], SAMPLING)])
    assert choices[0].usage and choices[0].usage.cached_prompt_tokens == ENCODED
    assert choices[0].token_ids == whisper_reference(folder, features, [7, 8], ANSWER)


def test_preempted_sequences_compute_their_recordings_again(folder: Path) -> None:
    """Three that begin together, with room for their prompts but not for their answers, without prefix caching."""
    request = whisper_request(*CASES[2], replace(SAMPLING, max_tokens=30, n=3))
    with running_engine(folder, num_blocks=14, enable_prefix_caching=False) as engine:
        (choices,) = run_requests(engine, [request])
    assert any(choice.usage and choice.usage.preemptions for choice in choices)
    assert [choice.token_ids for choice in choices] == [whisper_reference(folder, *CASES[2], 30)] * 3


@pytest.mark.slow
@pytest.mark.parametrize("batch_invariant", [False, True])
def test_kernels_of_a_gpu(
    folder: Path, expected: list[list[int]], monkeypatch: pytest.MonkeyPatch, batch_invariant: bool
) -> None:
    """Decoding steps, and texts that follow recordings in the cache, are replayed from graphs.

    What is batch-invariant has kernels of its own, and no part in graphs.
    """
    recorder, allocate = Recorder(), Runner.allocate
    record_prompts(monkeypatch, 30)
    ops = InvariantTritonOps if batch_invariant else TritonOps
    monkeypatch.setattr("engine_svc.loader.model.create_ops", lambda *_: ops())

    def allocate_with_graphs(runner: Runner, *arguments: int) -> None:
        allocate(runner, *arguments)
        runner.make_graphs(recorder)

    monkeypatch.setattr(Runner, "_run_prompt", lambda *_: None)  # a warm-up; the interpreter compiles nothing
    if not batch_invariant:
        monkeypatch.setattr(Runner, "allocate", allocate_with_graphs)
    few = 2  # tokens: Triton's interpreter takes a second for each
    requests = [whisper_request(*case, replace(SAMPLING, max_tokens=few)) for case in CASES[::2]]
    with running_engine(folder, attention_backend="triton", max_num_seqs=2, batch_invariant=batch_invariant) as engine:
        assert tokens(run_requests(engine, requests)) == [answer[:few] for answer in expected[::2]]
        if not batch_invariant:
            replays, steps = recorder.replays, engine.load().step
            assert tokens(run_requests(engine, requests)) == [answer[:few] for answer in expected[::2]]
            assert recorder.replays - replays == engine.load().step - steps == few  # the texts, and the rest


@needs_native
def test_decoding_is_replayed_and_does_not_depend_on_the_batch(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replayed, run = [], NotedSteps.run

    def noted(self: NotedSteps, batch: Any) -> Any:
        found = run(self, batch)
        replayed.append(found is not None)
        return found

    monkeypatch.setattr(NotedSteps, "run", noted)
    requests = [whisper_request(*case, SAMPLING) for case in CASES]
    with running_engine(folder, dtype="bfloat16", enable_prefix_caching=False) as engine:
        together = tokens(run_requests(engine, requests))
        replayed.clear()
        alone = [tokens(run_requests(engine, [request]))[0] for request in requests]
    assert alone == together
    assert replayed.count(True) == len(CASES) * (ANSWER - 1)
    with running_engine(folder, dtype="bfloat16", **IN_CHUNKS) as engine:
        assert tokens(run_requests(engine, requests)) == together


def test_samples_of_one_recording_share_it(folder: Path, expected: list[list[int]]) -> None:
    with running_engine(folder) as engine:
        (choices,) = run_requests(engine, [whisper_request(*CASES[1], replace(SAMPLING, n=3))])
    assert [choice.token_ids for choice in choices] == [expected[1]] * 3


def test_prompts_without_their_recording_are_refused() -> None:
    limits = RequestLimits(("m",), 1000, 188, 20, "fcfs", accepts_media=True, encoder_tokens=ENCODED)
    features, text = CASES[0]
    validate(whisper_request(features, text, SAMPLING), limits)
    bad = [
        whisper_request(features, [], SAMPLING), whisper_request(features, text, replace(SAMPLING, prompt_logprobs=1)),
        whisper_request(features, text, SAMPLING, first=[3]), whisper_request(features, text, SAMPLING, images=0),
    ]  # fmt: skip
    for each in bad:
        with pytest.raises(InvalidRequest, match=r"one recording|prompt_logprobs is not supported"):
            validate(each, limits)


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({"input_features": np.zeros((2, 16, 200), np.float32)}, "embeddings for"),
        ({"input_features": np.zeros((1, 16, 100), np.float32)}, "takes float32 [rows, 16, 200]"),
        ({"input_features": None}, "needs input_features and a mask"),
    ],
)
def test_what_does_not_fit_fails_alone(folder: Path, inputs: dict[str, Any], words: str) -> None:
    good = whisper_request(*CASES[0], SAMPLING)
    if (features := inputs["input_features"]) is not None:
        inputs = inputs | {"input_features_mask": np.ones((len(features), 200), np.bool_)}
    with running_engine(folder) as engine:
        (_, error), (answer, none) = outcomes(engine, [with_inputs(good, **inputs), good])
    assert error is not None and words in error.message
    assert none is None and len(answer) == ANSWER


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"enable_lora": True}, "does not support --enable-lora"),
        ({"kv_cache_dtype": "fp8", "calculate_kv_scales": True}, "does not support --calculate-kv-scales"),
        ({"limit_mm_per_prompt": "audio=0"}, "does not support --limit-mm-per-prompt audio=0"),
        ({"max_model_len": 189}, "--max-model-len 189"),
    ],
)
def test_options_that_it_does_not_support(folder: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(StartupError, match=words), running_engine(folder, **options):
        pass


def test_more_text_than_rows_of_the_encoder_is_refused(tmp_path: Path) -> None:
    folder = make_whisper_model(tmp_path)
    change_config(folder, max_target_positions=ROWS + 1)
    with pytest.raises(StartupError, match="expected at most max_source_positions"), running_engine(folder):
        pass
