"""A gateway that may open few files."""

from __future__ import annotations

import resource

import pytest

from gateway import main
from quire.options.gateway import GatewayOptions


@pytest.mark.parametrize(
    ("soft", "hard", "raised", "connections"),
    [
        (1024, 4096, 1256, 1000), (2048, 4096, None, 1000), (1024, -1, 1256, 1000), (-1, -1, None, 1000),
        (1024, 1024, 1024, 768), (64, 100, 100, 50),
    ],
)  # fmt: skip
def test_more_connections_than_files(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    soft: int, hard: int, raised: int | None, connections: int,
) -> None:  # fmt: skip
    set_to: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: set_to.append(limits))
    options = main._with_connections_that_fit(GatewayOptions(max_connections=1000))
    assert options.max_connections == connections
    assert set_to == ([] if raised is None else [(raised, hard)])
    assert ("raise the limit (ulimit -n 1256)" in caplog.text) == (connections < 1000)
