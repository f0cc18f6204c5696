"""Every metric that docs/compatibility.md lists as working is exported."""

from __future__ import annotations

import inspect
import re

import pytest

from gateway.metrics import adapters, fleet, speculation
from quire.compatibility.names import METRICS
from tests.support.gateway_stack import GatewayStack

pytestmark = pytest.mark.asyncio(loop_scope="module")
# Metrics of engines; some appear only with speculation, adapters, a host tier or finished steps: see tests nearby.
_OF_SOME = "".join(map(inspect.getsource, (adapters, fleet, speculation)))


async def test_what_is_called_working_is_exported(gateway: GatewayStack) -> None:
    await gateway.complete()
    text = (await gateway.client.get("/metrics")).text
    seen = set(re.findall(r"^vllm:([a-z0-9_]+)", text, re.M))
    for name in METRICS:
        named = name.removeprefix("spec_decode_")
        of_some = f'{named}"' in _OF_SOME or f'{named.removesuffix("_total")}"' in _OF_SOME
        found = bool(seen & {name, f"{name}_total", f"{name}_count"}) or of_some
        assert found, name
