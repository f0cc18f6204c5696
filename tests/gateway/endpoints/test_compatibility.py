"""The routes that docs/compatibility.md lists as served exist."""

from __future__ import annotations

import re
from urllib.parse import urljoin

import pytest

from gateway.app import routes
from quire.compatibility.names import ROUTES
from quire.compatibility.refused_routes import REFUSED_ROUTES
from quire.options.gateway import GatewayOptions
from tests.support.gateway_stack import GatewayStack

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_what_is_called_served_is() -> None:
    every = routes(
        GatewayOptions(
            allow_runtime_lora_updating=True, enable_tokenizer_info_endpoint=True, enable_scale_out=True,
            server_dev_mode=True,
        )
    )  # fmt: skip
    served = {f"{method} {route.path}" for route in every for method in route.methods or ()}
    assert set(ROUTES) <= served
    assert not served & REFUSED_ROUTES.keys()


async def test_what_is_called_refused_says_why(gateway: GatewayStack) -> None:
    for name, reason in REFUSED_ROUTES.items():
        method, path = name.split(" ")
        response = await gateway.client.request(method, path)
        assert response.status_code == 501, name
        error = response.json()["error"]
        assert (error["message"], error["type"]) == (reason, "NotImplementedError")


async def test_redoc_shows_what_docs_does(gateway: GatewayStack) -> None:
    pages = [await gateway.client.get(path) for path in ("/docs", "/redoc")]
    assert pages[0].text == pages[1].text
    for asset in re.findall(r'(?:src|href)="([^"]+)"', pages[1].text):
        assert (await gateway.client.get(urljoin("/redoc", asset))).status_code == 200
