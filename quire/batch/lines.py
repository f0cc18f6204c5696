"""The line format of batches, which is OpenAI's."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from quire.errors import StartupError

_SHOWN_FAULTS = 5
_MAX_LINE_BYTES = 64 * 2**20


class BatchLine(msgspec.Struct):
    """A line of the input: one request."""

    custom_id: str
    url: str  # path of the endpoint, such as /v1/chat/completions
    body: msgspec.Raw
    method: str = "POST"


class BatchResponse(msgspec.Struct):
    """The server's answer to a request."""

    status_code: int
    request_id: str
    body: Any


class BatchResult(msgspec.Struct):
    """A line of the output."""

    id: str
    custom_id: str
    response: BatchResponse | None
    error: Any = None


class _Streamed(msgspec.Struct):
    stream: Any = None


@dataclass(frozen=True)
class BatchInput:
    """An input file whose lines are all well-formed."""

    path: Path
    places: list[tuple[int, int]]  # offset and length of each request's line
    digest: str  # SHA-256 of the whole file

    def __len__(self) -> int:
        return len(self.places)

    def read(self, indices: list[int]) -> Iterator[tuple[int, BatchLine]]:
        """Yields some of the requests, with their indices."""
        decoder = msgspec.json.Decoder(BatchLine)
        with self.path.open("rb") as file:
            for index in indices:
                start, length = self.places[index]
                file.seek(start)
                yield index, decoder.decode(file.read(length))


def read_input(path: Path) -> BatchInput:
    """Validates a file of requests, before a model is loaded for it.

    Raises:
        StartupError: it cannot be read, or has lines that are not requests; the message lists the first of them.
    """
    places: list[tuple[int, int]] = []
    faults: list[str] = []
    seen: dict[bytes, int] = {}
    digest, at = hashlib.sha256(), 0
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                digest.update(line)
                if line.strip():
                    places.append((at, len(line)))
                    if fault := _fault(line, number, seen):
                        faults.append(f"line {number}: {fault}")
                at += len(line)
    except OSError as error:
        raise StartupError(f"--input-file {path}: {error.strerror}.") from error
    if faults:
        more = f" (and {len(faults) - _SHOWN_FAULTS} more)" if len(faults) > _SHOWN_FAULTS else ""
        raise StartupError(
            f"--input-file {path} has lines that are not valid requests: {'; '.join(faults[:_SHOWN_FAULTS])}{more}."
        )
    if not places:
        raise StartupError(f"--input-file {path} has no requests.")
    return BatchInput(path, places, digest.hexdigest())


def _fault(line: bytes, number: int, seen: dict[bytes, int]) -> str:
    """What is wrong with a line; empty if nothing is."""
    if len(line) > _MAX_LINE_BYTES:
        return f"{len(line)} bytes are too long for a line"
    try:
        request = msgspec.json.decode(line, type=BatchLine)
        streamed = msgspec.json.decode(request.body, type=_Streamed)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return str(error)[:200]
    if request.method != "POST":
        return f"method is {request.method[:20]!r}; it must be POST"
    if not request.url.startswith("/"):
        return f"url is {request.url[:80]!r}; it must be a path such as /v1/chat/completions"
    if streamed.stream:
        return "body.stream: a batch does not support streams"
    if not request.custom_id:
        return "custom_id is empty"
    if first := seen.setdefault(hashlib.blake2b(request.custom_id.encode(), digest_size=16).digest(), number) - number:
        return f"custom_id {request.custom_id[:80]!r} is also used in line {number + first}"
    return ""
