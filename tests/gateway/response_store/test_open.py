"""Store locations given by options."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.response_store.open import open_store
from gateway.response_store.redis import RedisStore
from gateway.response_store.sqlite import SqliteStore
from quire.errors import StartupError
from quire.options.responses import ResponsesOptions


async def test_each_place_has_its_store(tmp_path: Path) -> None:
    assert open_store(ResponsesOptions()) is None
    for url, kind in ((f"sqlite:///{tmp_path}/r.db", SqliteStore), ("redis://:p@127.0.0.1:1/0", RedisStore)):
        options = ResponsesOptions(url)
        options.check()
        store = open_store(options)
        assert isinstance(store, kind)
        await store.close()


@pytest.mark.parametrize("url", ["memory", "sqlite://r.db", "sqlite:///", "http://x", "postgres://secret@x"])
def test_other_places_are_refused(url: str) -> None:
    with pytest.raises(StartupError, match="--responses-store must be") as refused:
        ResponsesOptions(url).check()
    assert "secret" not in str(refused.value)


async def test_a_file_that_cannot_be_opened_is_told(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no database, and longer than a header of one " * 100)
    for path in (tmp_path / "missing" / "r.db", tmp_path / "text", tmp_path):
        with pytest.raises(StartupError, match="cannot be opened"):
            open_store(ResponsesOptions(f"sqlite:///{path}"))
