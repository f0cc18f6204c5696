"""One gateway for each module of tests; the fake engine says A, H, O, V, ] to the prompt A."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.support.gateway_stack import GatewayStack, running_gateway


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tokenizer")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(tokenizer_folder: Path) -> AsyncIterator[GatewayStack]:
    async with running_gateway(tokenizer_folder, enable_request_id_headers=True) as stack:
        yield stack
        assert stack.context.pipeline.num_live == 0
        assert stack.context.statistics.num_live == 0
