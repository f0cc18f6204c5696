"""Fingerprints are equal for workers that generate the same tokens, and differ otherwise."""

from __future__ import annotations

import shutil
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine_svc.executor.base import create_executor
from engine_svc.fingerprint import fingerprint
from quire.options.base import OptionField, fields_of
from quire.options.engine import EngineOptions
from quire.options.model import ModelOptions
from tests.support.engine_options import engine_options
from tests.support.fake_executor import FakeExecutor
from tests.support.for_each import for_each
from tests.support.tiny_models import make_model

SPEC = FakeExecutor().spec


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("llama"), "llama", max_shard_size="200KB")


def of(folder: Path, spec: dict[str, Any] | None = None, eos: tuple[int, ...] = (), **options: Any) -> str:
    return fingerprint(folder, engine_options(**options), msgspec.structs.replace(SPEC, **(spec or {})), eos)


def loaded(folder: Path, **options: Any) -> str:
    """Loads the model, and returns the worker's fingerprint."""
    chosen = engine_options(use_tqdm_on_load=False, **options)
    executor = create_executor(chosen.parallel)
    try:
        return fingerprint(folder, chosen, executor.load(ModelOptions(model=str(folder)), chosen), ())
    finally:
        executor.close()


def test_two_loads_agree_and_another_dtype_does_not(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    assert loaded(folder) == loaded(copy) == loaded(folder, dtype="float32", max_num_seqs=7)
    assert len({loaded(folder), loaded(folder, dtype="bfloat16"), loaded(folder, attention_backend="reference")}) == 3


@pytest.mark.parametrize("place", [0.0, 0.5, 1.0])
def test_changed_weights_are_noticed(folder: Path, tmp_path: Path, place: float) -> None:
    assert len(list(folder.glob("*.safetensors"))) > 1
    for name in [file.name for file in folder.glob("*.safetensors")]:
        copy = shutil.copytree(folder, tmp_path / name)
        assert of(copy) == of(folder)
        data = bytearray((copy / name).read_bytes())
        data[int(place * (len(data) - 1))] ^= 1
        (copy / name).write_bytes(data)
        assert of(copy) != of(folder)


def test_of_large_files_little_is_read(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    with file.open("wb") as opened:
        opened.truncate(2**36)  # sparse
    before = of(tmp_path)
    with file.open("r+b") as opened:
        opened.seek(-1, 2)
        opened.write(b"x")
    assert of(tmp_path) != before


def test_files_are_told_apart(folder: Path, tmp_path: Path) -> None:
    fewer, other = shutil.copytree(folder, tmp_path / "fewer"), shutil.copytree(folder, tmp_path / "other")
    min(fewer.glob("*.safetensors")).unlink()
    (other / "config.json").write_text((other / "config.json").read_text().replace('"rms_norm_eps"', '"eps"'))
    assert len({of(folder), of(fewer), of(other), of(tmp_path)}) == 4


# Non-default values for options that accept only certain ones.
OTHERS = {"quantization": "int8", "distributed_executor_backend": "mp", "seed": 1, "load_format": "safetensors",
          "hf_config_path": "/nowhere"}  # fmt: skip


def another(field: OptionField) -> Any:
    """Returns a valid value that is not the option's default."""
    if field.name in OTHERS:
        return OTHERS[field.name]
    if field.multiple:
        return (field.type("7"),)
    taken = (field.default, getattr(SPEC, field.name, None))
    if choices := [choice for choice in field.metadata["choices"] if choice not in taken]:
        return choices[-1]
    return {bool: not field.default, dict: {"temperature": 0.5}, str: "other", int: 7, float: 0.25}[field.type]


# The others' values are specific to a load format, or only some of their keys matter.
FIELDS = [
    field for field in fields_of(EngineOptions) if field.name not in ("model_loader_extra_config", "speculative_config")
]


@for_each("field", FIELDS)
def test_options_that_affect_output_change_the_fingerprint_and_others_do_not(folder: Path, field: OptionField) -> None:
    value = another(field)
    assert value != field.default
    # What some options resolve to is in the spec and counts, whether it was set explicitly or chosen by `auto`.
    spec = {field.name: value} if field.metadata["affects_output"] and hasattr(SPEC, field.name) else {}
    chosen = of(folder, spec, **{field.name: value})
    assert (chosen != of(folder)) == field.metadata["affects_output"]
    assert not spec or chosen == of(folder, spec)


def test_what_changes_tokens_changes_the_fingerprint(folder: Path) -> None:
    changed = [
        of(folder), of(folder, {"dtype": "bfloat16"}), of(folder, {"attention_backend": "cpu"}),
        of(folder, {"device": "cuda (H)"}), of(folder, eos=(2,)), of(folder, quantization="int8"),
        of(folder, {"cpu_kernels": "torch"}), of(folder, kv_cache_dtype="fp8"),
        of(folder, watermark_config={"key": 1}), of(folder, watermark_config={"key": 2}),
        of(folder, kv_cache_dtype="fp8", kv_cache_dtype_skip_layers=("0",)), of(folder, tensor_parallel_size=2),
        of(folder, hf_overrides={"rope_theta": 1.0}), of(folder, load_format="dummy"),
        of(folder, {"accepts_images": True}),
        of(folder, load_format="dummy", seed=1),
        of(folder, speculative_config={"method": "ngram", "acceptance_method": "typical_acceptance_sampler"}),
    ]  # fmt: skip
    assert len(set(changed)) == len(changed)
    assert {len(each) for each in changed} == {16}


def test_what_does_not_does_not(folder: Path) -> None:
    same = [of(folder), of(folder, seed=1), of(folder, max_num_seqs=3), of(folder, {"available_bytes": 5})]
    same.append(of(folder, speculative_config={"method": "ngram"}))
    assert len(set(same)) == 1
    settings = {"key": 1, "alpha": 0.2}
    assert len({of(folder, watermark_config=dict(each)) for each in (settings, reversed(settings.items()))}) == 1


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Replaces the compiled kernels of every level by one file."""
    file = tmp_path / "library.so"
    file.write_bytes(b"sums")
    monkeypatch.setattr("engine_svc.fingerprint.library", lambda level: file)
    return file


@pytest.mark.usefixtures("compiled")
def test_kernels_of_a_level_are_the_same_on_every_processor(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def both(**spec: Any) -> set[str]:
        found = set()
        for processor in ({"avx2"}, {"avx2", "avx512f"}):
            monkeypatch.setattr("engine_svc.fingerprint.listed", lambda processor=processor: frozenset(processor))
            found.add(of(folder, spec))
        return found

    ours = both(cpu_kernels="avx2", batch_invariant=True)
    assert len(ours) == 1
    assert ours != both(cpu_kernels="avx512", batch_invariant=True)
    # Torch chooses its operators by the processor's features.
    assert len(both(cpu_kernels="torch")) == 2
    assert len(both(cpu_kernels="avx2", batch_invariant=True, accepts_images=True)) == 2  # it encodes images


def test_images_are_encoded_by_the_code_of_transformers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = of(folder), of(folder, {"accepts_images": True})
    monkeypatch.setattr(
        "engine_svc.fingerprint.version", lambda name: "0" if name == "transformers" else metadata.version(name)
    )
    after = of(folder), of(folder, {"accepts_images": True})
    assert after[0] == before[0]
    assert after[1] != before[1]


def test_kernels_that_were_changed_or_compiled_otherwise_are_others(
    folder: Path, compiled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels may differ although the version is the same, as between two commits."""
    on_cpu, on_gpu = {"cpu_kernels": "avx2", "batch_invariant": True}, {"device": "cuda (H)"}
    written = tmp_path / "kernels"
    written.mkdir()
    (written / "matrix.py").write_text("sums")
    monkeypatch.setattr("engine_svc.fingerprint._TRITON_KERNELS", written)
    before = of(folder, on_cpu), of(folder, on_gpu)
    assert (of(folder, on_cpu), of(folder, on_gpu)) == before
    compiled.write_bytes(b"sums in another order")
    assert of(folder, on_cpu) != before[0]
    assert of(folder, on_gpu) == before[1]
    (written / "matrix.py").write_text("sums in another order")
    assert of(folder, on_gpu) != before[1]
