"""Logging: one line per event on standard error, with the service's name and the request's id."""

from __future__ import annotations

import json
import logging
import sys
import time

from quire.options.log import LogOptions
from quire.rpc.context import current_request_id


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


def setup_logging(service: str, options: LogOptions) -> None:
    """Points the root logger of this process at standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter(service) if options.log_format == "json" else _TextFormatter(service))
    logging.basicConfig(level=options.log_level.upper(), handlers=[handler], force=True)
    # Libraries report at info what only a developer of theirs wants to know.
    for noisy in ("grpc", "httpx", "httpcore", "urllib3", "filelock", "asyncio"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
