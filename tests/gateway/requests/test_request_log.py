"""Request contents in the log: never without the options that ask for them.

Those are `--enable-log-requests`, `--enable-log-outputs`, `--max-log-len` and `--log-error-stack`.
"""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from quire.errors import StartupError
from quire.log import setup_logging
from quire.options.gateway import GatewayOptions
from quire.options.log import LogOptions
from tests.support.gateway_stack import running_gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def logged(folder: Path, caplog: pytest.LogCaptureFixture, **options: Any) -> str:
    """What a gateway logs for a request that succeeds and one that fails."""
    with caplog.at_level(logging.INFO, logger="gateway"):
        async with running_gateway(folder, **options) as stack:
            await stack.complete(prompt=["A"], max_tokens=3, request_id="r1", temperature=0.5)
            assert (await stack.post("/v1/completions", {"prompt": []})).status_code == 400
    return "\n".join(record.getMessage() for record in caplog.records if record.name.startswith("gateway"))


async def test_requests_and_outputs(tokenizer_folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = await logged(tokenizer_folder, caplog, enable_log_requests=True, enable_log_outputs=True)
    assert "request r1 for fake: prompt token ids [(32,)], {" in text and "'temperature': 0.5" in text
    assert "request r1, choice 0 ended by length: 'AHO'" in text
    assert "a request failed" not in text


@contextmanager
def json_lines() -> Iterator[io.StringIO]:
    """Captures what `--log-format json` writes within the context."""
    root, records = logging.getLogger(), logging.getLogRecordFactory()
    handlers, level, lines = root.handlers[:], root.level, io.StringIO()
    try:
        setup_logging("gateway", LogOptions(log_format="json"), terminal=lines)
        yield lines
    finally:
        root.handlers = handlers
        root.setLevel(level)
        logging.setLogRecordFactory(records)


async def test_every_line_has_its_request_s_id(tokenizer_folder: Path) -> None:
    """Outputs are logged by tasks shared by all requests, so the id has to be passed along."""
    with json_lines() as lines:
        async with running_gateway(tokenizer_folder, enable_log_requests=True, enable_log_outputs=True) as stack:
            for request_id in ("r1", "r2"):
                body = {"model": "fake", "prompt": ["A"], "max_tokens": 3}
                headers = {"x-request-id": request_id}
                assert (await stack.client.post("/v1/completions", json=body, headers=headers)).status_code == 200
    told = [json.loads(line) for line in lines.getvalue().splitlines()]
    told = [line for line in told if line["logger"] == "gateway.requests.request_log"]
    assert [line.get("request_id") for line in told] == ["r1", "r1", "r2", "r2"]


async def test_they_are_cut(tokenizer_folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    options = {"enable_log_requests": True, "enable_log_outputs": True, "max_log_len": 1}
    text = await logged(tokenizer_folder, caplog, **options)
    assert "[(32,)]" in text and "ended by length: 'A'" in text


async def test_a_search_for_beams_is_one_request(tokenizer_folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="gateway"):
        async with running_gateway(tokenizer_folder, enable_log_requests=True, enable_log_outputs=True) as stack:
            await stack.complete(request_id="r1", use_beam_search=True, n=2, max_tokens=1)
    texts = [record.getMessage() for record in caplog.records if record.name == "gateway.requests.request_log"]
    assert [text.split(" ended by")[0] for text in texts[1:]] == ["request r1, choice 0", "request r1, choice 1"]


async def test_nothing_is_logged_unasked(tokenizer_folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = await logged(tokenizer_folder, caplog, log_error_stack=True)
    assert "r1" not in text and "AHO" not in text
    assert "a request failed" in text and any(record.exc_info for record in caplog.records)


async def test_outputs_need_requests() -> None:
    with pytest.raises(StartupError, match="--enable-log-requests"):
        GatewayOptions(enable_log_outputs=True).check()
