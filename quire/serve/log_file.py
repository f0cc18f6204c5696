"""The log file of `quire serve`: where it is, and that it does not grow for ever."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from quire.errors import StartupError
from quire.options.log import LogOptions

_MAX_BYTES = 64 * 2**20


class LogFile:
    """A file that all services append to; each notices by itself when it has been moved away."""

    def __init__(self, path: Path, max_bytes: int = _MAX_BYTES) -> None:
        """Begins a new one; the last run's is kept beside it.

        Raises:
            OSError: it cannot be written.
        """
        self.path = path
        self._max_bytes = max_bytes
        self._paths = [path]  # what this run has written
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._begin()

    def rotate(self) -> None:
        """Begins a new one when it is full."""
        with contextlib.suppress(OSError):
            if self.path.stat().st_size > self._max_bytes:
                self._begin()
                self._paths = [self.path, self._before]

    def remove(self) -> None:
        """Leaves nothing of this run; what an earlier one of this name left stays."""
        for path in self._paths:
            path.unlink(missing_ok=True)

    @property
    def _before(self) -> Path:
        return Path(f"{self.path}.1")

    def _begin(self) -> None:
        # Not what stands for something else, such as /dev/null, or /dev/stderr, which may lead to a file; nor a folder.
        if self.path.is_file() and not self.path.is_symlink():
            self.path.replace(self._before)
        os.close(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))


def choose_log_file(options: LogOptions, name: str) -> LogFile | None:
    """The file that the options name, else one of this stack's own; None when all is for the terminal, or the
    configuration of logs says where it goes.

    Args:
        name: what tells stacks apart: the port of the gateway, or the ranks of a stack without one.

    Raises:
        StartupError: the file that the options name cannot be written.
    """
    if options.log_file == "-":
        return None
    if options.log_file is None and (options.log_level == "debug" or options.log_config_file is not None):
        return None
    if options.log_file is not None:
        try:
            return LogFile(Path(options.log_file))
        except OSError as error:
            raise StartupError(f"--log-file {options.log_file} cannot be written: {error.strerror}.") from error
    state = Path(os.environ.get("XDG_STATE_HOME") or Path("~/.local/state").expanduser())
    with contextlib.suppress(OSError):  # on a read-only system, all is for the terminal
        return LogFile(state / "quire" / f"serve-{name}.log")
    return None
