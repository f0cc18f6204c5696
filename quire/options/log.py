"""Options of logging, the same in every process."""

from __future__ import annotations

from dataclasses import dataclass

from quire.options.base import option


@dataclass(frozen=True)
class LogOptions:
    """How much is logged and in which form."""

    log_level: str = option(
        "info", "Least level logged.", choices=("debug", "info", "warning", "error"), variables=("VLLM_LOGGING_LEVEL",)
    )
    log_format: str = option("text", "text for people, json for log collectors.", choices=("text", "json"))
    log_file: str | None = option(
        None, "File for all log lines; the terminal then shows warnings and errors alone. `-` is the terminal. "
        "Default: the terminal; for `quire serve` quire/serve-PORT.log in $XDG_STATE_HOME (~/.local/state), unless "
        "--log-level debug asks for everything; `quire run-batch` removes it once the batch is done.", metavar="PATH",
    )  # fmt: skip
    log_config_file: str | None = option(
        None, "File with a configuration as Python's logging.config.dictConfig takes it, JSON or (.yaml) YAML, for all "
        "processes. What it leaves open is as the other options have it; %(service)s and %(request_id)s are there for "
        "its formats.", metavar="PATH", variables=("VLLM_LOGGING_CONFIG_PATH",),
    )  # fmt: skip
