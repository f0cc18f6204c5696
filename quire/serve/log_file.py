"""The log file of `quire serve`: its location and rotation."""

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
        """Starts a new file; keeps the last run's beside it.

        Raises:
            OSError: the file cannot be written.
        """
        self.path = path
        self._max_bytes = max_bytes
        self._paths = [path]  # files written by this run
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._begin()

    def rotate(self) -> None:
        """Starts a new file when the current one is full."""
        with contextlib.suppress(OSError):
            if self.path.stat().st_size > self._max_bytes:
                self._begin()
                self._paths = [self.path, self._before]

    def remove(self) -> None:
        """Deletes this run's files; an earlier run's file of the same name stays."""
        for path in self._paths:
            path.unlink(missing_ok=True)

    @property
    def _before(self) -> Path:
        return Path(f"{self.path}.1")

    def _begin(self) -> None:
        # Leaves anything but a regular file in place, such as /dev/null, a symlink like /dev/stderr, or a folder.
        if self.path.is_file() and not self.path.is_symlink():
            self.path.replace(self._before)
        os.close(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))


def choose_log_file(options: LogOptions, name: str) -> LogFile | None:
    """The log file that the options name, else one for this stack. None if everything goes to the terminal, or a
    logging configuration decides.

    Args:
        name: distinguishes stacks: the port of the gateway, or the ranks of a stack without one.

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
    with contextlib.suppress(OSError):  # on a read-only system, everything goes to the terminal
        return LogFile(state / "quire" / f"serve-{name}.log")
    return None
