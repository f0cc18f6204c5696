"""Sampling defaults and end-of-sequence tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine_svc.config_formats.registry import find_model_config
from engine_svc.plan import KvCacheSpec
from engine_svc.requests.generation_config import GenerationDefaults, read_generation_defaults
from engine_svc.worker import EngineWorker
from quire.errors import StartupError
from quire.options.engine import EngineOptions
from quire.options.model import ModelOptions
from tests.support.engine_options import engine_options
from tests.support.fake_executor import FakeExecutor


def read(folder: Path, options: EngineOptions) -> GenerationDefaults:
    return read_generation_defaults(folder, options.generation, find_model_config(folder, options.form))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path, "config.json", {"eos_token_id": 7, "text_config": {"eos_token_id": [9]}})
    write(
        tmp_path,
        "generation_config.json",
        {"eos_token_id": [5, 6], "temperature": 0.6, "top_k": 20, "max_new_tokens": 100, "do_sample": True},
    )
    return tmp_path


def write(folder: Path, name: str, content: dict[str, Any]) -> None:
    (folder / name).write_text(json.dumps(content))


def test_auto_reads_the_models_own(folder: Path) -> None:
    defaults = read(folder, EngineOptions())
    assert defaults.sampling == {"temperature": 0.6, "top_k": 20, "max_tokens": 100}
    assert defaults.eos_token_ids == {5, 6, 7, 9}


def test_vllm_means_neutral_but_stops_all_the_same(folder: Path) -> None:
    defaults = read(folder, engine_options(generation_config="vllm"))
    assert defaults.sampling == {}
    assert defaults.eos_token_ids == {5, 6, 7, 9}


@pytest.mark.parametrize("wrong", ["</s>", 2.5, [2, None], True])
def test_an_end_that_is_no_token(folder: Path, wrong: Any) -> None:
    write(folder, "generation_config.json", {"eos_token_id": wrong})
    with pytest.raises(StartupError, match=r"eos_token_id is .*; expected a token id"):
        read(folder, EngineOptions())


def test_no_token_ends_it(folder: Path) -> None:
    write(folder, "generation_config.json", {"eos_token_id": -1})
    assert read(folder, EngineOptions()).eos_token_ids == {7, 9}


def test_a_folder_of_its_own(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    write(other, "generation_config.json", {"top_p": 0.5, "eos_token_id": 3})
    defaults = read(folder, engine_options(generation_config=str(other)))
    assert defaults.sampling == {"top_p": 0.5}
    assert 3 in defaults.eos_token_ids
    with pytest.raises(StartupError, match="--generation-config"):
        read(folder, engine_options(generation_config=str(tmp_path / "none")))


def test_overrides_win(folder: Path) -> None:
    options = engine_options(override_generation_config={"temperature": 0.1, "eos_token_id": 2, "top_k": -1})
    defaults = read(folder, options)
    assert defaults.sampling == {"temperature": 0.1, "top_k": 0, "max_tokens": 100}
    assert defaults.eos_token_ids == {2}


@pytest.mark.parametrize(
    "override",
    [{"temperature": 3.0}, {"temperature": "hot"}, {"top_p": float("nan")}, {"max_new_tokens": 0}],
)
def test_wrong_overrides_are_refused(folder: Path, override: dict[str, Any]) -> None:
    with pytest.raises(StartupError, match=next(iter(override))):
        read(folder, engine_options(override_generation_config=override))


def test_missing_files_are_empty_and_broken_ones_are_told(tmp_path: Path) -> None:
    assert read(tmp_path, EngineOptions()).eos_token_ids == frozenset()
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(StartupError, match=r"config\.json cannot be read"):
        read(tmp_path, EngineOptions())


@pytest.mark.parametrize(
    ("content", "message"),
    [("[" * 100_000, "is not valid JSON"), ('{"top_k": NaN}', "top_k is nan"), ('{"top_k": 1e400}', "top_k is inf")],
)
def test_what_json_alone_may_say(folder: Path, content: str, message: str) -> None:
    (folder / "generation_config.json").write_text(content)
    with pytest.raises(StartupError, match=message):
        read(folder, EngineOptions())


def test_null_takes_a_default_away(folder: Path) -> None:
    options = engine_options(override_generation_config={"max_new_tokens": None})
    assert read(folder, options).sampling == {"temperature": 0.6, "top_k": 20}


async def test_one_that_is_not_there_is_found_before_the_weights_are_read(tmp_path: Path) -> None:
    class Unread(FakeExecutor):
        def load(self, model: ModelOptions, options: EngineOptions) -> KvCacheSpec:
            raise AssertionError("it reads the weights first")

    options = engine_options(generation_config="/nowhere")
    with pytest.raises(StartupError, match="--generation-config /nowhere"):
        await EngineWorker(Unread(), ModelOptions(model=str(tmp_path)), options).load()
