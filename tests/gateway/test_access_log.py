"""What the access log shows of requests."""

from __future__ import annotations

import logging

import pytest

from gateway.access_log import AccessLogFilter
from quire.options.gateway import GatewayOptions

OPTIONS = GatewayOptions(disable_access_log_for_endpoints="/tokenize, /version,")


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("/v1/models", "/v1/models"), ("/v1/models?api_key=secret", "/v1/models?…"), ("/health", None),
        ("/base/metrics?x=1", None), ("/load", None), ("/tokenize", None), ("/base/version?x=1", None),
        ("/versions", "/versions"),
    ],
)  # fmt: skip
def test_queries_and_probes_are_left_out(path: str, told: str | None) -> None:
    record = logging.LogRecord("uvicorn.access", logging.INFO, "", 0, '%s - "%s %s HTTP/%s" %d', None, None)
    record.args = ("127.0.0.1:5", "GET", path, "1.1", 200)
    assert AccessLogFilter(OPTIONS.disable_access_log_for_endpoints).filter(record) == (told is not None)
    assert told is None or record.getMessage() == f'127.0.0.1:5 - "GET {told} HTTP/1.1" 200'
