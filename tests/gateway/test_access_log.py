"""What the access log shows of requests."""

from __future__ import annotations

import logging

import pytest

from gateway.main import _is_to_be_told


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("/v1/models", "/v1/models"), ("/v1/models?api_key=secret", "/v1/models?…"), ("/health", None),
        ("/base/metrics?x=1", None),
    ],
)  # fmt: skip
def test_queries_and_probes_are_left_out(path: str, told: str | None) -> None:
    record = logging.LogRecord("uvicorn.access", logging.INFO, "", 0, '%s - "%s %s HTTP/%s" %d', None, None)
    record.args = ("127.0.0.1:5", "GET", path, "1.1", 200)
    assert _is_to_be_told(record) == (told is not None)
    assert told is None or record.getMessage() == f'127.0.0.1:5 - "GET {told} HTTP/1.1" 200'
