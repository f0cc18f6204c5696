"""Signed addresses of workers."""

from __future__ import annotations

import time

import pytest

from gateway.requests.kv_transfer import NO_KV_TRANSFER, KvTransfer, KvTransferKey
from quire.errors import InvalidRequest

KEY = KvTransferKey("shared")


@pytest.mark.parametrize("address", ["10.0.0.1:50061", "[::1]:50061", "worker.namespace.svc:50061"])
def test_an_address_stays_the_same(address: str) -> None:
    assert KEY.transfer(KEY.params(address)) == KvTransfer(source=address)


def test_servers_with_the_same_token_believe_each_other() -> None:
    params = KEY.params("10.0.0.1:50061")
    assert KvTransferKey("shared").transfer(params).source == "10.0.0.1:50061"
    with pytest.raises(InvalidRequest, match="is not signed"):
        KvTransferKey("another").transfer(params)


def test_what_is_old_is_not_pulled(monkeypatch: pytest.MonkeyPatch) -> None:
    params, now = KEY.params("10.0.0.1:50061"), time.time()
    monkeypatch.setattr("gateway.requests.kv_transfer.time.time", lambda: now + 470)
    assert KEY.transfer(params).source
    monkeypatch.setattr("gateway.requests.kv_transfer.time.time", lambda: now + 481)
    assert KEY.transfer(params) == NO_KV_TRANSFER
