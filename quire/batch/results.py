"""The answers so far, in a file beside the output, so that an interrupted run can be resumed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import msgspec

from quire.batch.lines import BatchInput, BatchResult
from quire.errors import StartupError

_encoder = msgspec.json.Encoder()


class Results:
    """A context in which answers are added in any order; `write` puts them in the order of the requests.

    The file begins with a line that identifies the input. Each following line is an answer, preceded by the index of
    its request; a line that was cut off is ignored.
    """

    def __init__(self, path: Path, requests: BatchInput) -> None:
        """Prepares the context; entering it opens the file.

        Raises:
            StartupError: the file belongs to another input.
        """
        self.path = path
        self._requests = requests
        self._places: dict[int, tuple[int, int]] = {}  # request index → offset and length of its answer
        self._file: BinaryIO

    def __enter__(self) -> Results:
        head = json.dumps({"quire batch": 1, "input": self._requests.digest}).encode() + b"\n"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.touch()
        self._file = self.path.open("r+b")
        found = self._file.readline()
        if found and found != head:
            self._file.close()
            raise StartupError(
                f"{self.path} has answers to requests other than those in {self._requests.path}: move it away, or "
                "choose another output."
            )
        if not found:
            self._file.write(head)
        self._end = self._read_back(len(head))
        self._file.seek(self._end)
        self._file.truncate()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):  # it tries again to write what `add` could not
            self._file.close()
        if not self._places:  # it would only be in the way once the input is corrected
            self.path.unlink(missing_ok=True)

    def _read_back(self, at: int) -> int:
        """Indexes the complete lines; returns the offset at which they end."""
        for line in self._file:
            number, _, answer = line.partition(b" ")
            if not line.endswith(b"\n") or not number.isdigit() or int(number) >= len(self._requests):
                break
            self._places[int(number)] = at + len(number) + 1, len(answer)
            at += len(line)
        return at

    def __len__(self) -> int:
        return len(self._places)

    @property
    def missing(self) -> list[int]:
        """Indices of the requests without an answer."""
        return [index for index in range(len(self._requests)) if index not in self._places]

    def add(self, index: int, result: BatchResult) -> None:
        """Appends the answer to a request.

        Raises:
            StartupError: it cannot be written.
        """
        number, answer = b"%d " % index, _encoder.encode(result) + b"\n"
        try:
            self._file.write(number + answer)
            self._file.flush()
        except OSError as error:
            raise _unwritten(self.path, error) from error
        self._places[index] = self._end + len(number), len(answer)
        self._end += len(number) + len(answer)

    def write(self, to: Path) -> None:
        """Writes all answers, in the order of the requests. An existing file is replaced only once the new one is
        complete.

        Raises:
            StartupError: they cannot be written.
        """
        part = to.with_name(f"{to.name}.new")
        try:
            self._write(part)
            shutil.move(part, to)
        except OSError as error:
            part.unlink(missing_ok=True)
            raise _unwritten(to, error) from error

    def _write(self, to: Path) -> None:
        with to.open("wb") as output:
            for index in range(len(self._requests)):
                start, length = self._places[index]
                self._file.seek(start)
                output.write(self._file.read(length))
            output.flush()
            os.fsync(output.fileno())

    def remove(self) -> None:
        """Deletes the file, once the output is in place."""
        self.path.unlink()


def _unwritten(path: Path, error: OSError) -> StartupError:
    return StartupError(
        f"{path} cannot be written: {error.strerror}. Once that is mended, run the same command again to continue."
    )
