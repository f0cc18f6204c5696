"""Which adapters are served: names, replacements, and where folders may lie."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engine_svc.adapters.registry import AdapterRegistry
from quire.bounds import MAX_ADAPTERS
from quire.errors import FailedPrecondition, InvalidRequest, NotFound, Overloaded, StartupError
from quire.options.lora import LoraModule, LoraOptions
from tests.support.adapter_folders import low_rank, write_adapter

MODULES = {"q_proj": (8, 6)}


def registry(root: Path | None, *, updating: bool = True, enabled: bool = True) -> AdapterRegistry:
    options = LoraOptions(
        enable_lora=enabled, allow_runtime_lora_updating=updating, allowed_lora_root=None if root is None else str(root)
    )
    return AdapterRegistry(options, ("base", "alias"), MODULES)


def adapter_folder(folder: Path, seed: int = 0) -> Path:
    return write_adapter(folder, low_rank(MODULES, seed=seed))


def test_adapters_come_are_replaced_and_go(tmp_path: Path) -> None:
    served = registry(tmp_path)
    versions = [served.version]
    adapter_folder(tmp_path / "x")
    adapter_folder(tmp_path / "y", seed=1)
    first = served.read("a", "x", "")
    assert served.adapters == ()
    assert served.put(first) is None
    versions.append(served.version)
    assert (first.name, first.path, first.rank, first.folder) == ("a", "x", 4, str(tmp_path / "x"))
    second = served.read("a", str(tmp_path / "y"), "other")
    assert second.key != first.key
    assert second.revision != first.revision
    with pytest.raises(InvalidRequest, match="already the name of the adapter in x"):
        served.put(second)
    assert served.put(second, in_place=True) is first
    versions.append(served.version)
    assert served.find("a") is second
    assert served.remove("a") is second
    versions.append(served.version)
    assert versions == sorted(set(versions))
    assert served.find("a") is None
    with pytest.raises(NotFound, match="No adapter is named 'a'"):
        served.remove("a")


@pytest.mark.parametrize("name", ["base", "alias", "", "a,b", "-a", "a" * 257, "a b", "a\n"])
def test_names_that_no_adapter_has(tmp_path: Path, name: str) -> None:
    adapter_folder(tmp_path / "x")
    with pytest.raises(InvalidRequest) as raised:
        registry(tmp_path).read(name, "x", "")
    assert raised.value.parameter == "name"


def test_no_more_than_so_many_are_served(tmp_path: Path) -> None:
    served = registry(tmp_path)
    adapter_folder(tmp_path / "x")
    for index in range(MAX_ADAPTERS):
        served.put(served.read(f"a{index}", "x", ""))
    last = served.read("one-more", "x", "")
    with pytest.raises(Overloaded):
        served.put(last)


def test_folders_lie_where_the_operator_allows(tmp_path: Path) -> None:
    root = tmp_path / "root"
    served = registry(root)
    adapter_folder(root / "x")
    outside = adapter_folder(tmp_path / "outside")
    (root / "link").symlink_to(outside)
    inside = root / "files"
    inside.mkdir()
    for file in outside.iterdir():
        (inside / file.name).symlink_to(file)
    (root / "near").symlink_to(root / "x")
    assert served.read("a", "near", "").folder == str(root / "x")
    assert served.read("a", str(root / "x"), "").path == str(root / "x")
    for path in ("../outside", str(outside), "link", "files", "/", "x/../../outside"):
        with pytest.raises(InvalidRequest, match="--allowed-lora-root"):
            served.read("a", path, "")
    for path in ("", "\0", "a" * 5000):
        with pytest.raises(InvalidRequest, match="1 to 4096"):
            served.read("a", path, "")
    for path in ("a" * 300, "\u00e9" * 4000):
        with pytest.raises(InvalidRequest, match="is not a folder"):
            served.read("a", path, "")


def test_updating_is_allowed_by_the_operator_alone(tmp_path: Path) -> None:
    adapter_folder(tmp_path / "x")
    for served, words in (
        (registry(tmp_path, updating=False), "--allow-runtime-lora-updating"),
        (registry(tmp_path, enabled=False), "--enable-lora"),
    ):
        with pytest.raises(FailedPrecondition, match=words):
            served.read("a", "x", "")
        with pytest.raises(FailedPrecondition, match=words):
            served.remove("a")


def test_adapters_of_the_options_may_lie_anywhere(tmp_path: Path) -> None:
    served = registry(None, updating=False)
    adapter_folder(tmp_path / "x")
    served.read_at_start(LoraModule("a", str(tmp_path / "x"), "told"))
    assert [each.base_model_name for each in served.adapters] == ["told"]
    with pytest.raises(StartupError, match=r"--lora-modules b: .* is not a folder"):
        served.read_at_start(LoraModule("b", str(tmp_path / "nowhere")))


def test_files_that_have_changed_are_noticed(tmp_path: Path) -> None:
    served = registry(tmp_path)
    adapter = served.read("a", str(adapter_folder(tmp_path / "x")), "")
    assert not adapter.has_changed()
    os.utime(tmp_path / "x" / "adapter_model.safetensors", ns=(1, 1))
    assert adapter.has_changed()
    (tmp_path / "x" / "adapter_config.json").unlink()
    assert adapter.has_changed()
