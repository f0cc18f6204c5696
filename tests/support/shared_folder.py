"""Engines that share blocks through a folder."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from engine_svc.core.engine import Engine
from engine_svc.kv_cache.connectors.shared_storage import SharedStorage
from quire.options.cache import CacheOptions
from tests.support.run_engine import running_engine


def sharing_engine(model: Path, shared: Path, role: str = "kv_both", **options: Any) -> AbstractContextManager[Engine]:
    """An engine that saves blocks in the shared folder or loads them from there, according to its role."""
    config = {
        "kv_connector": "SharedStorageConnector", "kv_role": role,
        "kv_connector_extra_config": {"shared_storage_path": str(shared)},
    }  # fmt: skip
    connector = SharedStorage(CacheOptions(kv_transfer_config=config).transfer(), lambda: "alike")
    return running_engine(model, connector=connector, kv_transfer_config=config, **options)
