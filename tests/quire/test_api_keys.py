"""The file of named API keys."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from quire.api_keys import key_digest, read_api_keys
from quire.errors import StartupError
from quire.options.gateway import GatewayOptions


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def saved(folder: Path, *keys: dict[str, Any]) -> str:
    path = folder / "keys.json"
    path.write_text(json.dumps({"keys": keys}))
    return str(path)


def test_a_key_or_its_digest(tmp_path: Path) -> None:
    plain, hashed = read_api_keys(
        saved(tmp_path, {"name": "a", "key": "secret"}, {"name": "b", "key_sha256": digest("other"), "weight": 2})
    )
    assert (plain.digest, hashed.digest) == (key_digest("secret"), key_digest("other"))
    assert (plain.requests_per_minute, plain.weight, plain.max_priority) == (None, 1.0, 0)
    assert hashed.weight == 2.0
    assert read_api_keys(saved(tmp_path)) == ()


@pytest.mark.parametrize(
    ("keys", "part"),
    [
        ([{"name": "a"}], "'a' needs either key or key_sha256"),
        ([{"name": "a", "key": "secret", "key_sha256": digest("secret")}], "needs either"),
        ([{"name": "a", "key": " secret"}], "spaces"),
        ([{"name": "a", "key": ""}], "is empty"),
        ([{"name": "a", "key_sha256": digest("")}], "is empty"),
        ([{"name": "a", "key_sha256": "secret"}], r"key_sha256"),
        ([{"name": "no spaces", "key": "secret"}], r"keys\[0\]\.name"),
        ([{"name": "a", "key": "secret"}, {"name": "a", "key": "secret2"}], "occurs twice"),
        ([{"name": "a", "key": "secret"}, {"name": "b", "key_sha256": digest("secret")}], "same key as that named 'a'"),
        ([{"name": "a", "key": "secret of clients"}], "same key as one of --api-key"),
        ([{"name": "a", "key": "secret", "tokens_per_minut": 5}], "tokens_per_minut"),
        ([{"name": "a", "key": "secret", "requests_per_minute": 0}], r"keys\[0\]\.requests_per_minute"),
        ([{"name": "a", "key": "secret", "weight": 0}], r"keys\[0\]\.weight"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused_without_showing_its_keys(tmp_path: Path, keys: list[Any], part: str) -> None:
    options = GatewayOptions(api_key=("secret of clients",), api_key_file=saved(tmp_path, *keys))
    with pytest.raises(StartupError, match=part) as caught:
        options.check()
    assert "secret" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_a_file_that_is_no_json_or_missing(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("acme: secret")
    with pytest.raises(StartupError, match="is wrong: JSON is malformed") as caught:
        GatewayOptions(api_key_file=str(tmp_path / "keys")).check()
    assert "secret" not in str(caught.value)
    with pytest.raises(StartupError, match="cannot be read"):
        GatewayOptions(api_key_file=str(tmp_path / "missing")).check()
    with pytest.raises(StartupError, match="cannot be read"):
        GatewayOptions(api_key_file="").check()


def test_a_file_of_keys_protects_a_server_that_others_can_reach(tmp_path: Path) -> None:
    GatewayOptions(host="0.0.0.0", api_key_file=saved(tmp_path, {"name": "a", "key": "secret"})).check()
