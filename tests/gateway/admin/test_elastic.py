"""Scaling the number of ranks through a gateway's admin port, with a fake supervisor."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import pytest

from quire.errors import Unavailable
from quire.serve.control import control_socket
from quire.supervised import control_path, supervised_environment
from quire.supervision import ScaleAnswer, ScaleRequest
from tests.support.admin_stack import running_admin_stack


async def answer(request: ScaleRequest) -> ScaleAnswer:
    if request.data_parallel_size == 9:
        raise Unavailable("The number of ranks is already being changed; try again when that is done.")
    assert request.drain_seconds in (120.0, 5.0)
    return ScaleAnswer(request.data_parallel_size or 2, scaling=request.data_parallel_size is None)


async def test_scaling(tokenizer_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_admin_stack(tokenizer_folder, engines=1) as stack:
        told = await stack.ask("/scale_elastic_ep", 400, json={"new_data_parallel_size": 2})
        assert "not started by `quire serve`" in told["error"]["message"]
        for name, value in supervised_environment("gateway", f"@quire-test-{secrets.token_hex(8)}").items():
            monkeypatch.setenv(name, value)
        async with control_socket(control_path(os.environ), answer):
            told = await stack.ask("/scale_elastic_ep", json={"new_data_parallel_size": 4, "drain_timeout": 5})
            assert told["data_parallel_size"] == 4
            told = await stack.ask("/is_scaling_elastic_ep")
            assert told == {"is_scaling_elastic_ep": True, "data_parallel_size": 2}
            await stack.ask("/scale_elastic_ep", 503, json={"new_data_parallel_size": 9})
            for body in ({}, {"new_data_parallel_size": "x"}, {"new_data_parallel_size": 2, "drain_timeout": -1}):
                await stack.ask("/scale_elastic_ep", 400, json=body)
