"""The API keys that are known: those of `--api-key`, and those of `--api-key-file` as it is now."""

from __future__ import annotations

import contextlib
import hmac
import time
from collections.abc import Callable, Iterator, Sequence

from gateway.requests.named_key import NamedKey
from quire.api_keys import ApiKey, key_digest
from quire.watched_files import WatchedFiles


class ApiKeys:
    """Keys, held as their digests."""

    def __init__(
        self,
        keys: Sequence[str],
        file: str | None = None,
        read: Callable[[], Sequence[ApiKey]] = tuple,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            keys: without names and limits.
            file: path of the file of named keys; None if there is none.
            read: reads that file.
            clock: returns the time in seconds.

        Raises:
            StartupError: the file is wrong.
        """
        self._plain = [key_digest(key) for key in keys]
        self._read, self._clock = read, clock
        self._named: dict[bytes, NamedKey] = {}
        self._holders: dict[Callable[[], None], bytes] = {}
        self.files = WatchedFiles("API keys", [] if file is None else [file], self._load)
        self._has_file = file is not None
        self._load()

    async def run(self) -> None:
        """Reads the file again whenever it changes, until cancelled."""
        await self.files.watch()

    @property
    def named(self) -> list[NamedKey]:
        """The keys of the file."""
        return list(self._named.values())

    @property
    def are_many(self) -> bool:
        """Whether there are several keys, or may be after a change of the file."""
        return self._has_file or len(self._plain) > 1

    def find(self, digest: bytes) -> tuple[bool, NamedKey | None]:
        """Returns whether a key is known, given its digest, and its name and limits if it has any. Always compares with
        all keys."""
        plain = [hmac.compare_digest(digest, known) for known in self._plain]
        named = [key for known, key in self._named.items() if hmac.compare_digest(digest, known)]
        return any(plain) or bool(named), named[0] if named else None

    @contextlib.contextmanager
    def held(self, key: NamedKey | None, end: Callable[[], None]) -> Iterator[None]:
        """Watches a key that is used for longer than a request, while the context is open.

        Args:
            key: None for one that is not of the file, which nothing removes.
            end: called when the file no longer has the key.
        """
        if key is not None:
            self._holders[end] = key.entry.digest
        try:
            yield
        finally:
            self._holders.pop(end, None)

    def _load(self) -> None:
        """Reads the file. A name that it had before goes on with what its requests have used."""
        before = {key.entry.name: key for key in self._named.values()}
        found = {}
        for entry in self._read():
            if key := before.get(entry.name):
                key.change(entry)
            else:
                key = NamedKey(entry, self._clock)
            found[entry.digest] = key
        self._named = found
        for end, digest in self._holders.items():
            if digest not in found:
                end()
