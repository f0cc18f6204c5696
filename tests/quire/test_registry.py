"""Values that options accept, and the registries that define them."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from quire.errors import StartupError
from quire.options.base import fields_of
from quire.options.engine import EngineOptions
from quire.options.gateway import GatewayOptions
from quire.options.router import RouterOptions
from quire.registry import load_entry, load_plugin, registry


@pytest.mark.parametrize(
    ("option", "place"),
    [
        ("dtype", "engine_svc.loader.own_dtype:TORCH_DTYPES"),
        ("kv_cache_dtype", "engine_svc.loader.attention_shape:_CACHE_DTYPES"),
        ("attention_backend", "engine_svc.attention.registry:BACKENDS"),
        ("scheduling_policy", "engine_svc.scheduler.policies:POLICIES"),
        ("distributed_executor_backend", "engine_svc.executor.base:EXECUTORS"),
        ("routing_policy", "router.placement.policies.registry:POLICIES"),
    ],
)
def test_an_option_takes_what_its_registry_has(option: str, place: str) -> None:
    module, _, name = place.partition(":")
    table = getattr(importlib.import_module(module), name)
    fields = {field.name: field for kind in (EngineOptions, RouterOptions, GatewayOptions) for field in fields_of(kind)}
    assert {*fields[option].metadata["choices"], "auto"} - {""} == {*table, "auto"}


@pytest.mark.parametrize("names", [("a",), ("a", "b", "c"), ("a", "c")])
def test_a_registry_of_other_names_is_refused_at_import(names: tuple[str, ...]) -> None:
    with pytest.raises(RuntimeError, match=r"--letter and its registry differ in (b|c|b, c)$"):
        registry("--letter", names, {"a": 1, "b": 2})


def test_an_entry_is_imported_when_it_is_taken() -> None:
    table = registry("--order", ("dict", "gone"), {"dict": "collections:OrderedDict", "gone": "nowhere:Nothing"})
    assert load_entry("--order", table, "dict").__name__ == "OrderedDict"
    with pytest.raises(StartupError, match=r"--order set does not exist. Choose one of dict, gone"):
        load_entry("--order", table, "set")


def test_an_installed_package_may_bring_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    described = tmp_path / "letters-1.0.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: letters\nVersion: 1.0\n")
    (described / "entry_points.txt").write_text("[quire.letters]\nc = collections:Counter\nd = nowhere:Nothing\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert load_plugin("--letter", {"a": ""}, "quire.letters", "c").__name__ == "Counter"
    with pytest.raises(StartupError, match=r"--letter d cannot be loaded: ModuleNotFoundError.*nowhere"):
        load_plugin("--letter", {"a": ""}, "quire.letters", "d")
    with pytest.raises(StartupError, match=r"--letter e does not exist. Choose one of a, c, d, or install .*quire.let"):
        load_plugin("--letter", {"a": ""}, "quire.letters", "e")
