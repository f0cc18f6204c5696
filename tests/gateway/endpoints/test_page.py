"""The page at `/`: its files, who may load them, and what they may do. A browser opens it in tests/integration."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gateway.page_assets import PAGE_ASSETS
from tests.support.gateway_stack import GatewayStack, running_gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_the_page_and_its_files(gateway: GatewayStack) -> None:
    page = await gateway.client.get("/")
    assert page.headers["content-type"].startswith("text/html")
    named = set(re.findall(r'(?:src|href)="page/([^"]+)"', page.text))
    for name in PAGE_ASSETS:
        file = await gateway.client.get(f"/page/{name}")
        assert file.status_code == 200
        assert file.headers["x-content-type-options"] == "nosniff"
        named |= set(re.findall(r'from "\./([^"]+)"', file.text))
    assert named == set(PAGE_ASSETS)
    for name in ("docs.html", "../app.py", "page.html"):
        assert (await gateway.client.get(f"/page/{name}")).status_code == 404


async def test_it_runs_nothing_but_its_own_and_asks_nobody_else(gateway: GatewayStack) -> None:
    page = await gateway.client.get("/")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    texts = [page.text] + [(await gateway.client.get(f"/page/{name}")).text for name in PAGE_ASSETS]
    assert not re.search(r"\son\w+=|<script>|<style>|\sstyle=", page.text)
    for text in texts:
        assert not [url for url in re.findall(r"https?://[^\s\"']+", text) if "www.w3.org/2000/svg" not in url]
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text)


async def test_a_key_protects_what_it_shows_and_not_the_page(tokenizer_folder: Path) -> None:
    async with running_gateway(tokenizer_folder, api_key=("key",)) as locked:
        for path in ("/", *(f"/page/{name}" for name in PAGE_ASSETS)):
            assert (await locked.client.get(path)).status_code == 200, path
        for path in ("/fleet", "/v1/models", "/page/other.js", "/page/../fleet"):
            assert (await locked.client.get(path)).status_code == 401, path


async def test_the_fleet(gateway: GatewayStack) -> None:
    (worker,) = (await gateway.client.get("/fleet")).json()["workers"]
    assert (worker["address"], worker["state"], worker["models"]) == (gateway.engine.address, "ready", ["fake"])


async def test_without_the_page(tokenizer_folder: Path) -> None:
    async with running_gateway(tokenizer_folder, page=False) as stack:
        assert (await stack.client.get("/")).status_code == 404
