"""Settings of --ec-transfer-config: what Quire does not have is refused with what it has."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from quire.errors import StartupError
from quire.options.multimodal import ImageEncoderOptions

CONSUMER = {"ec_connector": "GrpcConnector", "ec_role": "ec_consumer"}
PRODUCER = CONSUMER | {"ec_role": "ec_producer"}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"ec_connector": "ECExampleConnector", "ec_role": "ec_producer"}, "Quire has GrpcConnector only"),
        ({"ec_connector": "GrpcConnector"}, "needs an ec_role: ec_producer or ec_consumer"),
        ({"ec_role": "ec_consumer"}, "there is no ec_connector; set it to GrpcConnector"),
        (CONSUMER | {"ec_role": "ec_both"}, "ec_role"),
        (CONSUMER | {"ec_buffer_size": -1}, "ec_buffer_size"),
        (CONSUMER | {"ec_connector_extra_config": {"shared_storage_path": "/ec"}}, "leave it out"),
    ],
)
def test_what_cannot_be_is_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=message):
        ImageEncoderOptions(ec_transfer_config=config).encoding()


def test_roles_are_those_of_what_workers_load() -> None:
    with pytest.raises(StartupError, match="add --mm-encoder-only, or use ec_consumer"):
        ImageEncoderOptions(ec_transfer_config=PRODUCER).encoding()
    with pytest.raises(StartupError, match="contradicts ec_role ec_consumer"):
        ImageEncoderOptions(mm_encoder_only=True, ec_transfer_config=CONSUMER).encoding()
    assert ImageEncoderOptions().encoding().ec_role is None
    assert ImageEncoderOptions(ec_transfer_config=CONSUMER).encoding().ec_role == "ec_consumer"
    assert ImageEncoderOptions(mm_encoder_only=True, ec_transfer_config=PRODUCER).encoding().ec_role == "ec_producer"
    kept = ImageEncoderOptions(mm_encoder_only=True, ec_transfer_config={"ec_buffer_size": 5e6}).encoding()
    assert (kept.ec_role, kept.ec_buffer_size) == ("ec_producer", 5e6)
