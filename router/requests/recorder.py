"""Records what was asked of a router, without any text, so that its load can be replayed in a simulation."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import logging
import os
import queue
import secrets
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import msgspec

from quire.errors import StartupError
from quire.runners import GENERATE, POOLING

if TYPE_CHECKING:
    from quire.v1 import common_pb2

logger = logging.getLogger(__name__)

_MOST_BYTES = 256 * 2**20  # of a file, until the next one is begun
_MOST_WAITING = 4096  # requests to be written
_KEY_BYTES = 8


class RecordedRequest(msgspec.Struct, omit_defaults=True, kw_only=True):
    """A line of a recording: one request that has ended.

    What identifies callers and prompts is hashed with a secret that nobody keeps: it can be compared with what the same
    process has recorded, and with nothing else.
    """

    time: float  # of its arrival, in seconds of Unix time
    seconds: float  # from then to its end
    outcome: str  # as in quire_router_requests_total
    model: str
    prompt_tokens: int  # of all inputs of a pooling request
    output_tokens: int = 0  # of all its sequences
    sequences: int = 1  # that are generated, or the inputs of a pooling request
    runner: str = GENERATE  # the kind of request: generate or pooling
    priority: int = 0
    queued_seconds: float = 0.0
    attempts: int = 0
    tenant: str = ""
    session: str = ""
    block_size: int = 0  # in tokens
    # Of the prompt's full blocks: 8 bytes for each, in base64. Equal where all tokens up to there are. Empty for
    # prompts of token ids, for which gateways compute none.
    blocks: str = ""

    @property
    def block_keys(self) -> list[int]:
        """`blocks`, each as a number."""
        content = base64.b64decode(self.blocks)
        return [
            int.from_bytes(content[start : start + _KEY_BYTES], "big") for start in range(0, len(content), _KEY_BYTES)
        ]


class RequestRecorder:
    """Writes requests to a file, in a thread of its own. What the disk is too slow for, or has no room for, is left out
    of the recording; nothing waits for it."""

    def __init__(self, path: Path, most_bytes: int = _MOST_BYTES) -> None:
        """
        Args:
            path: of the file. When it is full, and if it exists at the start, it becomes `path`.1, in place of the one
                that had this name.

        Raises:
            StartupError: the file cannot be written.
        """
        self._path, self._most_bytes = path, most_bytes
        self._secret = secrets.token_bytes(32)
        self._waiting: queue.Queue[tuple[RecordedRequest, list[int]] | None] = queue.Queue(_MOST_WAITING)
        self._has_failed = False
        try:
            self._file = self._next_file()
        except OSError as error:
            raise StartupError(f"--record-requests {path} cannot be written: {error.strerror}.") from error
        self._thread = threading.Thread(target=self._write_all, name="request-recorder", daemon=True)
        self._thread.start()

    def record(
        self, generation: common_pb2.Generation, outcome: str, *, model: str, prompt_tokens: int, seconds: float,
        output_tokens: int = 0, queued_seconds: float = 0.0, attempts: int = 0,
    ) -> None:  # fmt: skip
        """Records a generation that ends now.

        Args:
            seconds: since its arrival.
        """
        request = RecordedRequest(
            time=round(time.time() - seconds, 6), seconds=round(seconds, 6), outcome=outcome, model=model,
            prompt_tokens=prompt_tokens, output_tokens=output_tokens, sequences=max(1, generation.sampling.n),
            priority=generation.priority, queued_seconds=round(queued_seconds, 6), attempts=attempts,
            tenant=self._hidden(generation.tenant), session=self._hidden(generation.session_id),
            block_size=generation.prompt_block_size if generation.prompt_block_keys else 0,
        )  # fmt: skip
        self._put(request, list(generation.prompt_block_keys))

    def record_pooling(
        self, message: common_pb2.PoolRequest, outcome: str, *, model: str, seconds: float,
        queued_seconds: float = 0.0, attempts: int = 0,
    ) -> None:  # fmt: skip
        """Records a pooling request that ends now; see `record`."""
        request = RecordedRequest(
            time=round(time.time() - seconds, 6), seconds=round(seconds, 6), outcome=outcome, model=model,
            prompt_tokens=sum(len(each.token_ids) for each in message.inputs), sequences=len(message.inputs),
            priority=message.priority, queued_seconds=round(queued_seconds, 6), attempts=attempts,
            tenant=self._hidden(message.tenant), runner=POOLING,
        )  # fmt: skip
        self._put(request, [])

    def _put(self, request: RecordedRequest, block_keys: list[int]) -> None:
        try:
            self._waiting.put_nowait((request, block_keys))
        except queue.Full:
            self._told_once("requests are left out of %s: the disk is too slow", self._path)

    def close(self) -> None:
        """Writes what waits, and closes the file. Blocks for a few seconds at most."""
        try:
            self._waiting.put(None, timeout=1.0)
        except queue.Full:
            return
        self._thread.join(timeout=5.0)

    def _write_all(self) -> None:
        while (item := self._waiting.get()) is not None:
            request, keys = item
            digests = b"".join(self._digest(key.to_bytes(_KEY_BYTES, "big")) for key in keys)
            request.blocks = base64.b64encode(digests).decode()
            try:
                self._file.write(msgspec.json.encode(request) + b"\n")
                if self._waiting.empty():
                    self._file.flush()
                if self._file.tell() >= self._most_bytes:
                    full, self._file = self._file, self._next_file()
                    full.close()
                self._has_failed = False
            except OSError as error:
                self._told_once("requests are left out of %s: %s", self._path, error)
        with contextlib.suppress(OSError):
            self._file.close()

    def _told_once(self, message: str, *args: object) -> None:
        if not self._has_failed:
            logger.warning(message, *args)
        self._has_failed = True

    def _next_file(self) -> BinaryIO:
        """Opens an empty file that only its owner may read."""
        if self._path.exists():
            self._path.replace(self._path.with_name(f"{self._path.name}.1"))
        return os.fdopen(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")

    def _hidden(self, name: str) -> str:
        return self._digest(name.encode()).hex() if name else ""

    def _digest(self, content: bytes) -> bytes:
        return hashlib.blake2b(content, digest_size=_KEY_BYTES, key=self._secret).digest()
