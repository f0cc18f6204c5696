"""Settings of --kv-transfer-config: KV blocks that workers exchange, or keep in host memory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec

_FOLDER = ("SharedStorageConnector", "ExampleConnector")  # vLLM's former and present name of the same one
GRPC = "GrpcConnector"  # workers pull blocks from each other
OFFLOADING = "OffloadingConnector"  # host memory, like --swap-space
MULTI = "MultiConnector"  # several of them
PRODUCER = "kv_producer"  # only saves blocks: where other workers load them, it computes prompts for those
CONSUMER = "kv_consumer"  # only loads blocks
# For each connector, the key of kv_connector_extra_config that it needs, what that is, and the keys that it may have.
_KEYS = {
    **dict.fromkeys(_FOLDER, ("shared_storage_path", "a folder", ("max_gib",))),
    GRPC: ("local_storage_path", "a folder", ("max_gib",)),
    OFFLOADING: ("cpu_bytes_to_use", "the host memory of all ranks, in bytes", ("block_size",)),
    MULTI: ("connectors", "a list of objects like this one", ()),
}


class ExtraConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Keys of kv_connector_extra_config."""

    shared_storage_path: str = ""  # a folder that all workers see
    local_storage_path: str = ""  # a folder of the worker's machine, from which workers elsewhere pull
    max_gib: Annotated[float, msgspec.Meta(gt=0)] = 32.0  # of its files; those used least recently are deleted
    cpu_bytes_to_use: Annotated[int, msgspec.Meta(ge=0)] = 0  # of host memory, on all ranks of a worker together
    block_size: int | None = None  # without effect: host memory keeps blocks of --block-size tokens
    connectors: tuple[KvTransferConfig, ...] = ()

    @property
    def folder(self) -> Path:
        """Quire's own folder in it, in which nothing else is kept: files there are deleted."""
        return Path(self.shared_storage_path or self.local_storage_path) / "quire-kv"


class KvTransferConfig(msgspec.Struct, frozen=True):
    """Keys of --kv-transfer-config."""

    kv_connector: str | None = None
    kv_role: Literal["kv_producer", "kv_consumer", "kv_both"] = "kv_both"
    kv_connector_extra_config: ExtraConfig = ExtraConfig()
    engine_id: str | None = None  # without effect: blocks are found by what they hold, wherever they come from

    def __post_init__(self) -> None:
        if self.kv_connector is None:
            return
        if self.kv_connector not in _KEYS:
            raise ValueError(
                f"kv_connector is {self.kv_connector!r}; Quire has {_FOLDER[0]}, which exchanges blocks through a "
                f"folder that all workers see, {GRPC}, with which workers pull them from each other, {OFFLOADING}, "
                f"which keeps them in host memory, and {MULTI}, which has several of these."
            )
        needed, meaning, others = _KEYS[self.kv_connector]
        if not getattr(self.kv_connector_extra_config, needed):
            raise ValueError(f"{self.kv_connector} needs kv_connector_extra_config.{needed}, {meaning}.")
        default = ExtraConfig()
        for key in ExtraConfig.__struct_fields__:
            is_given = getattr(self.kv_connector_extra_config, key) != getattr(default, key)
            if is_given and key not in (needed, *others):
                raise ValueError(f"{self.kv_connector} has no kv_connector_extra_config.{key}; leave it out.")
        if self.kv_connector == MULTI:
            _check_several(self)

    @property
    def is_on(self) -> bool:
        """Whether blocks are kept elsewhere than on the device."""
        return self.kv_connector is not None

    @property
    def exchanges(self) -> tuple[KvTransferConfig, ...]:
        """Each connector by which blocks are exchanged with other workers, in the order in which they are looked up."""
        if self.kv_connector == MULTI:
            return tuple(each for each in self.kv_connector_extra_config.connectors if each.kv_connector != OFFLOADING)
        return (self,) if self.is_on and self.kv_connector != OFFLOADING else ()

    @property
    def role(self) -> str:
        """How blocks are exchanged with other workers; empty if they are not."""
        return next((each.kv_role for each in self.exchanges), "")

    @property
    def remote(self) -> KvTransferConfig | None:
        """The connector by which a worker that loads blocks pulls them from the one that has computed them."""
        return next((each for each in self.exchanges if each.kv_connector == GRPC), None)

    @property
    def host_bytes(self) -> int:
        """Host memory for blocks, of all ranks together."""
        extra = self.kv_connector_extra_config
        return extra.cpu_bytes_to_use or sum(each.host_bytes for each in extra.connectors)

    @property
    def saves(self) -> bool:
        """Whether the worker saves the blocks that it computes."""
        return self.kv_role != CONSUMER

    @property
    def loads(self) -> bool:
        """Whether the worker loads blocks that it or others have saved."""
        return self.kv_role != PRODUCER


def _check_several(config: KvTransferConfig) -> None:
    """Checks a MultiConnector.

    Raises:
        ValueError: its connectors cannot be used together.
    """
    names = [each.kv_connector for each in config.kv_connector_extra_config.connectors]
    if None in names or MULTI in names:
        raise ValueError(f"each of the connectors of {MULTI} needs a kv_connector other than {MULTI}.")
    for name in (GRPC, OFFLOADING):
        if names.count(name) > 1:
            raise ValueError(f"{MULTI} has {names.count(name)} connectors {name}; leave one.")
    roles = {each.kv_role for each in config.exchanges} | ({config.kv_role} - {"kv_both"})
    if len(roles) > 1:
        raise ValueError(
            f"{MULTI} and its connectors have kv_role {' and '.join(sorted(roles))}; a worker has one role, so give "
            "all the same."
        )
    folders = [each.kv_connector_extra_config.folder for each in config.exchanges]
    if len(set(folders)) < len(folders):
        raise ValueError(f"two connectors of {MULTI} have the same folder; give each its own.")
