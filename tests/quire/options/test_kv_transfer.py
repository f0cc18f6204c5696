"""Settings of --kv-transfer-config: what Quire does not have is refused with what it has."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from quire.options.cache import CacheOptions

FOLDER = {"shared_storage_path": "/kv"}
HOST = {"cpu_bytes_to_use": 2 * 10**9}
SHARED = {"kv_connector": "SharedStorageConnector", "kv_connector_extra_config": FOLDER}
GRPC = {"kv_connector": "GrpcConnector", "kv_connector_extra_config": {"local_storage_path": "/dev/shm"}}
OFFLOADING = {"kv_connector": "OffloadingConnector", "kv_connector_extra_config": HOST | {"block_size": 64}}


def several(*connectors: dict[str, Any]) -> dict[str, Any]:
    return {"kv_connector": "MultiConnector", "kv_connector_extra_config": {"connectors": list(connectors)}}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"kv_connector": "NixlConnector"}, "Quire has SharedStorageConnector.*, GrpcConnector.* and MultiConnector"),
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
        ({"kv_connector": "OffloadingConnector"}, "needs kv_connector_extra_config.cpu_bytes_to_use"),
        (
            {"kv_connector": "OffloadingConnector", "kv_connector_extra_config": HOST | {"max_gib": 1}},
            "OffloadingConnector has no kv_connector_extra_config.max_gib",
        ),
        (
            {"kv_connector": "OffloadingConnector", "kv_connector_extra_config": HOST | {"spec_name": "Tiering"}},
            "spec_name",
        ),
        ({"kv_connector": "MultiConnector"}, "needs kv_connector_extra_config.connectors"),
        (several({"kv_connector": "NixlConnector"}), "kv_connector is 'NixlConnector'; Quire has"),
        (several({}), "each of the connectors of MultiConnector needs a kv_connector"),
        (several(several(OFFLOADING)), "needs a kv_connector other than MultiConnector"),
        (several(OFFLOADING, OFFLOADING), "has 2 connectors OffloadingConnector; leave one"),
        (several(GRPC, GRPC), "has 2 connectors GrpcConnector; leave one"),
        (several(SHARED, SHARED), "the same folder"),
        (several(GRPC, SHARED | {"kv_role": "kv_producer"}), "kv_role kv_both and kv_producer; a worker has one role"),
        (several(SHARED) | {"kv_role": "kv_consumer"}, "kv_role kv_both and kv_consumer"),
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
    assert (chosen.role, chosen.saves, chosen.loads) == (role, saves, loads)
    assert not CacheOptions().transfer().is_on


def test_where_nothing_is_shared_each_worker_has_its_own_folder() -> None:
    chosen = CacheOptions(kv_transfer_config=GRPC).transfer()
    assert chosen.remote is chosen
    assert str(chosen.kv_connector_extra_config.folder) == "/dev/shm/quire-kv"
    assert CacheOptions().transfer().remote is None


@pytest.mark.parametrize(
    ("config", "exchanges", "remote", "role", "host_bytes"),
    [
        ({}, [], False, "", 0),
        (OFFLOADING, [], False, "", 10**9),
        (several(OFFLOADING), [], False, "", 10**9),
        (several(SHARED, OFFLOADING), ["/kv"], False, "kv_both", 10**9),
        (several(SHARED, GRPC), ["/kv", "/dev/shm"], True, "kv_both", 0),
        (several(OFFLOADING, GRPC | {"kv_role": "kv_consumer"}), ["/dev/shm"], True, "kv_consumer", 10**9),
    ],
)
def test_several_connectors(
    config: dict[str, Any], exchanges: list[str], remote: bool, role: str, host_bytes: int
) -> None:
    """Host memory is that of two ranks together, and nothing is exchanged by it."""
    options = CacheOptions(kv_transfer_config=config)
    chosen = options.transfer()
    assert [str(each.kv_connector_extra_config.folder.parent) for each in chosen.exchanges] == exchanges
    assert (chosen.is_on, chosen.remote is not None, chosen.role) == (bool(config), remote, role)
    assert options.host_bytes(num_ranks=2) == host_bytes
    assert CacheOptions(swap_space=1.0).host_bytes(num_ranks=2) == 2**30
    assert CacheOptions(kv_offloading_size=1.0).host_bytes(num_ranks=2) == 2**29
