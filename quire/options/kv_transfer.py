"""Settings of --kv-transfer-config: KV blocks that workers exchange."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec

_CONNECTORS = ("SharedStorageConnector", "ExampleConnector")  # vLLM's former and present name of the same one
PRODUCER = "kv_producer"  # only saves blocks: where other workers load them, it computes prompts for those


class SharedStorageConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Keys of kv_connector_extra_config."""

    shared_storage_path: str = ""  # a folder that all workers see
    max_gib: Annotated[float, msgspec.Meta(gt=0)] = 32.0  # of its files; those used least recently are deleted

    @property
    def folder(self) -> Path:
        """Quire's own folder in it, in which nothing else is kept: files there are deleted."""
        return Path(self.shared_storage_path) / "quire-kv"


class KvTransferConfig(msgspec.Struct, frozen=True):
    """Keys of --kv-transfer-config."""

    kv_connector: str | None = None
    kv_role: Literal["kv_producer", "kv_consumer", "kv_both"] = "kv_both"
    kv_connector_extra_config: SharedStorageConfig = SharedStorageConfig()
    engine_id: str | None = None  # without effect: blocks are found by what they hold, wherever they come from

    def __post_init__(self) -> None:
        if self.kv_connector is None:
            return
        if self.kv_connector not in _CONNECTORS:
            raise ValueError(
                f"kv_connector is {self.kv_connector!r}; Quire has {_CONNECTORS[0]}, which exchanges blocks through a "
                "folder that all workers see."
            )
        if not self.kv_connector_extra_config.shared_storage_path:
            raise ValueError(f"{self.kv_connector} needs kv_connector_extra_config.shared_storage_path, a folder.")

    @property
    def is_on(self) -> bool:
        """Whether blocks are exchanged."""
        return self.kv_connector is not None

    @property
    def saves(self) -> bool:
        """Whether the worker saves the blocks that it computes."""
        return self.kv_role != "kv_consumer"

    @property
    def loads(self) -> bool:
        """Whether the worker loads blocks that it or others have saved."""
        return self.kv_role != "kv_producer"
