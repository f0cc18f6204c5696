"""Reads the file of named API keys (`--api-key-file`), with errors that say what is wrong with it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from quire.bounds import PRIORITY_BOUND, TENANT_WEIGHT_BOUND
from quire.errors import StartupError

FLAG = "--api-key-file"

_Count = Annotated[int, Meta(ge=1, le=10**15)]


class ApiKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A named key and what its requests may do. A limit that is None is no limit."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{1,64}$")]  # in metrics and logs
    key: str | None = None
    key_sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")] | None = None  # instead of the key, which it hides
    requests_per_minute: _Count | None = None
    tokens_per_minute: _Count | None = None  # of prompts and outputs
    max_concurrent_requests: _Count | None = None
    # Share of the tokens that routers let in from their queues, relative to other tenants.
    weight: Annotated[float, Meta(ge=TENANT_WEIGHT_BOUND.minimum, le=TENANT_WEIGHT_BOUND.maximum)] = 1.0
    # The most urgent `priority` of its requests: lower numbers are more urgent.
    max_priority: Annotated[int, Meta(ge=int(PRIORITY_BOUND.minimum), le=int(PRIORITY_BOUND.maximum))] = 0

    @property
    def digest(self) -> bytes:
        """SHA-256 of the key."""
        return key_digest(self.key) if self.key is not None else bytes.fromhex(self.key_sha256 or "")


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    keys: tuple[ApiKey, ...]


def key_digest(key: str) -> bytes:
    """Returns the SHA-256 of a key."""
    return hashlib.sha256(key.encode()).digest()


def read_api_keys(path: str, taken: Mapping[bytes, str] = {}) -> tuple[ApiKey, ...]:
    """Reads the keys of a file.

    Args:
        taken: digests of keys that the file must not have → the option that they are from.

    Raises:
        StartupError: the file cannot be read, or its content is wrong. The message shows none of its keys.
    """
    try:
        keys = msgspec.json.decode(Path(path).read_bytes(), type=_File).keys
    except OSError as error:
        raise StartupError(f"{FLAG} {path} cannot be read: {error.strerror}.") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StartupError(
            f'{FLAG} {path} is wrong: {error}. It must be JSON such as {{"keys": [{{"name": "acme", "key": "…"}}]}}.'
        ) from error
    found: dict[bytes, str] = dict(taken)
    names = set[str]()
    for key in keys:
        if wrong := _wrong(key, found, names):
            raise StartupError(f"{FLAG} {path}: the key named {key.name!r} {wrong}")
        found[key.digest] = f"that named {key.name!r}"
        names.add(key.name)
    return keys


def _wrong(key: ApiKey, found: Mapping[bytes, str], names: set[str]) -> str:
    """Returns what is wrong with a key, beside those before it; empty if nothing is."""
    if (key.key is None) == (key.key_sha256 is None):
        return "needs either key or key_sha256, the SHA-256 of the key in hexadecimal digits."
    if key.digest == key_digest("") or (key.key or "") != (key.key or "").strip():
        return "has a key that is empty or has spaces around it, so no request can match it. Set another key."
    if key.name in names:
        return "occurs twice. Give each key a name of its own."
    if (other := found.get(key.digest)) is not None:
        return f"is the same key as {other}. Remove one of the two."
    return ""
