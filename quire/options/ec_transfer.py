"""Settings of --ec-transfer-config: which workers encode images, videos and audio for others."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from quire.options.kv_transfer import GRPC

PRODUCER = "ec_producer"  # encodes for others, and does nothing else
CONSUMER = "ec_consumer"  # has what it reads encoded by others


class EcTransferConfig(msgspec.Struct, frozen=True):
    """Keys of --ec-transfer-config."""

    ec_connector: str | None = None
    ec_role: Literal["ec_producer", "ec_consumer"] | None = None
    # Bytes of embeddings that a producer keeps, in case the same media come again.
    ec_buffer_size: Annotated[float, msgspec.Meta(ge=0)] = 1e9
    ec_connector_extra_config: dict[str, Any] = {}
    engine_id: str | None = None  # without effect: what is asked for comes with the question

    def __post_init__(self) -> None:
        if self.ec_connector is None:
            if self.ec_role is not None:
                raise ValueError(f"ec_role is {self.ec_role}, but there is no ec_connector; set it to {GRPC}.")
            return
        if self.ec_connector != GRPC:
            raise ValueError(
                f"ec_connector is {self.ec_connector!r}; Quire has {GRPC} only, with which workers that generate ask "
                "those that encode."
            )
        if self.ec_role is None:
            raise ValueError(f"{GRPC} needs an ec_role: {PRODUCER} or {CONSUMER}.")
        if self.ec_connector_extra_config:
            raise ValueError(f"{GRPC} has no ec_connector_extra_config; leave it out.")
