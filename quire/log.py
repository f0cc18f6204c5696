"""Logging: one line per event on standard error or in a file, with the service's name and the request id."""

from __future__ import annotations

import contextlib
import json
import logging
import logging.config
import sys
import time
from logging.handlers import WatchedFileHandler
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, TextIO, cast

from quire.errors import StartupError
from quire.options.log import LogOptions
from quire.rpc.context import current_request_id
from quire.supervised import supervised_name

_CONFIG_FLAG = "--log-config-file"
_FAULT_SECONDS = 60.0  # between two lines about a log file that cannot be written


class Terminal(Protocol):
    """The stream that log lines are written to."""

    def write(self, text: str, /) -> object:
        """Writes text."""

    def flush(self) -> None:
        """Flushes what was written."""


class TextFormatter(logging.Formatter):
    """Formats records as lines for people."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, followed by the traceback of an error."""
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        suffix = f" [{_request_id(record)}]" if _request_id(record) else ""
        error = f"\n{self.formatException(record.exc_info)}" if record.exc_info else ""
        return f"{clock} {record.levelname[0]} {_service(record)}: {record.getMessage()}{suffix}{error}"


class JsonFormatter(logging.Formatter):
    """Formats records as JSON lines for log collectors."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as a JSON object."""
        entry = {
            "time": record.created, "level": record.levelname.lower(), "service": _service(record),
            "logger": record.name, "message": record.getMessage(),
        }  # fmt: skip
        if request_id := _request_id(record):
            entry["request_id"] = request_id
        if record.exc_info:
            entry["error"] = self.formatException(record.exc_info)
        return json.dumps(entry)


def _service(record: logging.LogRecord) -> str:
    return str(getattr(record, "service", ""))


def _request_id(record: logging.LogRecord) -> str:
    return str(getattr(record, "request_id", ""))


class _Records:
    """The record factory of this process: adds the service's name and the request id."""

    def __init__(self, service: str, options: LogOptions) -> None:
        self.service = service
        self.options = options

    def __call__(self, *args: Any, **kwargs: Any) -> logging.LogRecord:
        record = logging.LogRecord(*args, **kwargs)
        record.service, record.request_id = self.service, current_request_id()
        return record


_FORMATTERS = {"text": TextFormatter, "json": JsonFormatter}


def setup_logging(service: str, options: LogOptions, part: str = "", terminal: Terminal | None = None) -> None:
    """Configures the root logger for standard error and the log file, or as --log-config-file says.

    Args:
        service: name in the log lines; a process started by `quire serve` uses the name it got there.
        part: part of the service, such as one of its ranks.
        terminal: used in place of standard error.

    Raises:
        StartupError: the log file cannot be written, or the configuration cannot be followed.
    """
    logging.setLogRecordFactory(_Records(f"{supervised_name() or service} {part}".rstrip(), options))
    formatter = _FORMATTERS[options.log_format]()
    handlers: list[logging.Handler] = [logging.StreamHandler(terminal or sys.stderr)]
    if options.log_file not in (None, "-"):
        handlers[0].setLevel(logging.WARNING)
        handlers.append(_open_log_file(str(options.log_file), terminal or sys.stderr))
    for handler in handlers:
        handler.setFormatter(formatter)
    logging.basicConfig(level=options.log_level.upper(), handlers=handlers, force=True)
    sys.excepthook = _log_uncaught
    # At level info, libraries log what interests only their developers.
    for noisy in ("grpc", "httpx", "httpcore", "urllib3", "filelock", "asyncio"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    if options.log_config_file is not None:
        _follow(options.log_config_file, terminal)


def _follow(path: str, terminal: Terminal | None) -> None:
    """Configures logging from a file.

    Args:
        terminal: replaces standard output and standard error for the handlers in the file.
    """
    config = _read_config(path)
    with contextlib.ExitStack() as stack:
        if terminal is not None:
            stack.enter_context(contextlib.redirect_stderr(cast("TextIO", terminal)))
            stack.enter_context(contextlib.redirect_stdout(cast("TextIO", terminal)))
        try:
            # The existing loggers are those of Quire's own modules.
            logging.config.dictConfig({"disable_existing_loggers": False, **config})
        except (ValueError, TypeError, AttributeError, ImportError, OSError) as error:
            reason = f"{error}: {error.__cause__}" if error.__cause__ else str(error)
            raise StartupError(f"{_CONFIG_FLAG} {path} cannot be applied: {reason}.") from error


def _read_config(path: str) -> dict[str, Any]:
    """Reads a logging configuration, YAML or JSON.

    Raises:
        StartupError: the file cannot be read, or contains something else.
    """
    import yaml  # slow to import, and rarely needed

    try:
        text = Path(path).read_text(encoding="utf-8")
        config = yaml.safe_load(text) if Path(path).suffix in (".yaml", ".yml") else json.loads(text)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise StartupError(f"{_CONFIG_FLAG} {path} cannot be read: {error}.") from error
    if not isinstance(config, dict):
        raise StartupError(f"{_CONFIG_FLAG} {path} must contain an object as for logging.config.dictConfig.")
    return config


class _LogFile(WatchedFileHandler):
    """Checks before each line whether the file was moved away, so that it can be rotated. A line that cannot be written
    is lost, which is told once a minute."""

    def __init__(self, path: str, terminal: Terminal) -> None:
        super().__init__(path, encoding="utf-8", errors="backslashreplace")
        self._terminal = terminal
        self._next = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        try:
            super().emit(record)
        except OSError:  # the file is gone, and there can be no new one
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:
        error, now = sys.exception(), time.monotonic()
        if not isinstance(error, OSError):
            super().handleError(record)
        elif now >= self._next:
            self._next = now + _FAULT_SECONDS
            self._terminal.write(f"Lines of the log are lost: {self.baseFilename}: {error.strerror}.\n")


def _open_log_file(path: str, terminal: Terminal) -> logging.Handler:
    try:
        return _LogFile(path, terminal)
    except OSError as error:
        raise StartupError(f"--log-file {path} cannot be written: {error.strerror}.") from error


def _log_uncaught(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """Logs the exception that ends the process."""
    logging.getLogger().critical("exiting because of an error", exc_info=(kind, error, traceback))


def log_options() -> LogOptions | None:
    """The logging options of this process, for the processes it starts; None if it has not set up logging."""
    records = logging.getLogRecordFactory()
    return records.options if isinstance(records, _Records) else None
