"""`quire chat`, without a server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from quire.client.api import Api
from quire.client.command import chat


def test_what_a_model_thinks_is_shown_beside_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def stream(api: Api, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        deltas: list[dict[str, str]] = [
            {"role": "assistant", "content": ""}, {"reasoning": "I "}, {"reasoning": "add."}, {"content": "4"},
            {"content": "2"}, {},
        ]  # fmt: skip
        return ({"delta": delta} for delta in deltas)

    monkeypatch.setattr(Api, "stream", stream)
    result = CliRunner().invoke(chat, ["--model-name", "m", "--quick", "17 + 25?"])
    assert (result.exit_code, result.stdout, result.stderr) == (0, "42\n", "I add.\n\n")
