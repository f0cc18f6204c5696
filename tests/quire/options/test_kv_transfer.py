"""Settings of --kv-transfer-config: what Quire does not have is refused with what it has."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from quire.options.cache import CacheOptions

FOLDER = {"shared_storage_path": "/kv"}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"kv_connector": "NixlConnector"}, "Quire has SharedStorageConnector.* and GrpcConnector"),
        ({"kv_connector": "SharedStorageConnector"}, "needs kv_connector_extra_config.shared_storage_path"),
        ({"kv_connector": "GrpcConnector"}, "needs kv_connector_extra_config.local_storage_path"),
        (
            {"kv_connector": "GrpcConnector", "kv_connector_extra_config": FOLDER | {"local_storage_path": "/own"}},
            "has no kv_connector_extra_config.shared_storage_path",
        ),
        ({"kv_connector": "SharedStorageConnector", "kv_role": "kv_neither"}, "kv_role"),
        (
            {"kv_connector": "SharedStorageConnector", "kv_connector_extra_config": FOLDER | {"max_gib": 0}},
            "max_gib",
        ),
        (
            {"kv_connector": "SharedStorageConnector", "kv_connector_extra_config": FOLDER | {"max_gb": 1}},
            "max_gb",
        ),
    ],
)
def test_what_cannot_be_is_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=message):
        CacheOptions(kv_transfer_config=config).transfer()


@pytest.mark.parametrize(
    ("role", "saves", "loads"),
    [("kv_producer", True, False), ("kv_consumer", False, True), ("kv_both", True, True)],
)
def test_a_role_says_who_saves_and_who_loads(role: str, saves: bool, loads: bool) -> None:
    config = {"kv_connector": "ExampleConnector", "kv_role": role, "kv_connector_extra_config": FOLDER}
    chosen = CacheOptions(kv_transfer_config=config).transfer()
    assert (chosen.is_on, chosen.saves, chosen.loads) == (True, saves, loads)
    assert not CacheOptions().transfer().is_on


def test_where_nothing_is_shared_each_worker_has_its_own_folder() -> None:
    config = {"kv_connector": "GrpcConnector", "kv_connector_extra_config": {"local_storage_path": "/dev/shm"}}
    chosen = CacheOptions(kv_transfer_config=config).transfer()
    assert chosen.is_remote
    assert str(chosen.kv_connector_extra_config.folder) == "/dev/shm/quire-kv"
    assert not CacheOptions().transfer().is_remote
