"""Logging: one line per event on standard error, or in a file, with the service's name and the request's id."""

from __future__ import annotations

import json
import logging
import sys
import time
from logging.handlers import WatchedFileHandler
from types import TracebackType
from typing import Protocol

from quire.errors import StartupError
from quire.options.log import LogOptions
from quire.rpc.context import current_request_id
from quire.supervised import supervised_name


class Terminal(Protocol):
    """What log lines are written to."""

    def write(self, text: str, /) -> object:
        """Takes text."""

    def flush(self) -> None:
        """Shows it."""


class _TextFormatter(logging.Formatter):
    def __init__(self, service: str) -> None:
        super().__init__()
        self.service = service

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        request_id = current_request_id()
        suffix = f" [{request_id}]" if request_id else ""
        error = f"\n{self.formatException(record.exc_info)}" if record.exc_info else ""
        return f"{clock} {record.levelname[0]} {self.service}: {record.getMessage()}{suffix}{error}"


class _JsonFormatter(logging.Formatter):
    def __init__(self, service: str) -> None:
        super().__init__()
        self.service = service

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": record.created, "level": record.levelname.lower(), "service": self.service,
            "logger": record.name, "message": record.getMessage(),
        }  # fmt: skip
        if request_id := current_request_id():
            entry["request_id"] = request_id
        if record.exc_info:
            entry["error"] = self.formatException(record.exc_info)
        return json.dumps(entry)


_FORMATTERS = {"text": _TextFormatter, "json": _JsonFormatter}


def setup_logging(service: str, options: LogOptions, part: str = "", terminal: Terminal | None = None) -> None:
    """Points the root logger of this process at standard error and at the log file.

    Args:
        service: what the lines name; a process of `quire serve` goes by the name that it has there.
        part: of the service, such as one of its ranks.
        terminal: in place of standard error.

    Raises:
        StartupError: the log file cannot be written.
    """
    formatter = _FORMATTERS[options.log_format](f"{supervised_name() or service} {part}".rstrip())
    handlers: list[logging.Handler] = [logging.StreamHandler(terminal or sys.stderr)]
    if options.log_file not in (None, "-"):
        handlers[0].setLevel(logging.WARNING)
        handlers.append(_open_log_file(str(options.log_file)))
    for handler in handlers:
        handler.setFormatter(formatter)
    logging.basicConfig(level=options.log_level.upper(), handlers=handlers, force=True)
    sys.excepthook = _log_uncaught
    # Libraries report at info what only a developer of theirs wants to know.
    for noisy in ("grpc", "httpx", "httpcore", "urllib3", "filelock", "asyncio"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def _open_log_file(path: str) -> logging.Handler:
    try:
        # Looks before each line whether the file was moved away, so that it can be rotated.
        return WatchedFileHandler(path, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise StartupError(f"--log-file {path} cannot be written: {error.strerror}.") from error


def _log_uncaught(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """What ends a process stands in its log too."""
    logging.getLogger().critical("ended by an error", exc_info=(kind, error, traceback))


def log_options() -> LogOptions:
    """The options that this process logs by, for processes of its own."""
    root = logging.getLogger()
    level = logging.getLevelName(root.getEffectiveLevel()).lower()
    files = [handler.baseFilename for handler in root.handlers if isinstance(handler, WatchedFileHandler)]
    formats = [name for name, kind in _FORMATTERS.items() for handler in root.handlers[:1]
               if isinstance(handler.formatter, kind)]  # fmt: skip
    return LogOptions(
        log_level=level if level in ("debug", "info", "warning", "error") else "info",
        log_format=formats[0] if formats else "text",
        log_file=files[0] if files else None,
    )
