"""Options of logging, the same in every process."""

from __future__ import annotations

from dataclasses import dataclass

from quire.options.base import option


@dataclass(frozen=True)
class LogOptions:
    """How much is logged and in which form."""

    log_level: str = option("info", "Least level logged.", choices=("debug", "info", "warning", "error"))
    log_format: str = option("text", "text for people, json for log collectors.", choices=("text", "json"))
