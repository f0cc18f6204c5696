"""Settings of --kv-transfer-config: KV blocks that workers exchange."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec

_FOLDER = ("SharedStorageConnector", "ExampleConnector")  # vLLM's former and present name of the same one
GRPC = "GrpcConnector"  # workers pull blocks from each other
PRODUCER = "kv_producer"  # only saves blocks: where other workers load them, it computes prompts for those
CONSUMER = "kv_consumer"  # only loads blocks


class StorageConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Keys of kv_connector_extra_config."""

    shared_storage_path: str = ""  # a folder that all workers see
    local_storage_path: str = ""  # a folder of the worker's machine, from which workers elsewhere pull
    max_gib: Annotated[float, msgspec.Meta(gt=0)] = 32.0  # of its files; those used least recently are deleted

    @property
    def folder(self) -> Path:
        """Quire's own folder in it, in which nothing else is kept: files there are deleted."""
        return Path(self.shared_storage_path or self.local_storage_path) / "quire-kv"


class KvTransferConfig(msgspec.Struct, frozen=True):
    """Keys of --kv-transfer-config."""

    kv_connector: str | None = None
    kv_role: Literal["kv_producer", "kv_consumer", "kv_both"] = "kv_both"
    kv_connector_extra_config: StorageConfig = StorageConfig()
    engine_id: str | None = None  # without effect: blocks are found by what they hold, wherever they come from

    def __post_init__(self) -> None:
        if self.kv_connector is None:
            return
        if self.kv_connector not in (*_FOLDER, GRPC):
            raise ValueError(
                f"kv_connector is {self.kv_connector!r}; Quire has {_FOLDER[0]}, which exchanges blocks through a "
                f"folder that all workers see, and {GRPC}, with which workers pull them from each other."
            )
        keys = ("local_storage_path", "shared_storage_path")
        needed, other = keys if self.is_remote else reversed(keys)
        if not getattr(self.kv_connector_extra_config, needed):
            raise ValueError(f"{self.kv_connector} needs kv_connector_extra_config.{needed}, a folder.")
        if getattr(self.kv_connector_extra_config, other):
            raise ValueError(f"{self.kv_connector} has no kv_connector_extra_config.{other}; leave it out.")

    @property
    def is_on(self) -> bool:
        """Whether blocks are exchanged."""
        return self.kv_connector is not None

    @property
    def is_remote(self) -> bool:
        """Whether a worker that loads blocks pulls them from the one that has computed them."""
        return self.kv_connector == GRPC

    @property
    def saves(self) -> bool:
        """Whether the worker saves the blocks that it computes."""
        return self.kv_role != CONSUMER

    @property
    def loads(self) -> bool:
        """Whether the worker loads blocks that it or others have saved."""
        return self.kv_role != PRODUCER
