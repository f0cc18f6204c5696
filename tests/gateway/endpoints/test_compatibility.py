"""The routes that docs/compatibility.md calls served are."""

from __future__ import annotations

from gateway.app import routes
from quire.compatibility.names import ROUTES
from quire.options.gateway import GatewayOptions


def test_what_is_called_served_is() -> None:
    every = routes(
        GatewayOptions(
            allow_runtime_lora_updating=True, enable_tokenizer_info_endpoint=True, enable_scale_out=True,
            server_dev_mode=True,
        )
    )  # fmt: skip
    served = {f"{method} {route.path}" for route in every for method in route.methods or ()}
    assert {name for name, missing in ROUTES.items() if not missing} <= served
    assert not served & {name for name, missing in ROUTES.items() if missing}
