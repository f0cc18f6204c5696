"""Options of logging, the same in every process."""

from __future__ import annotations

from dataclasses import dataclass

from quire.options.base import option


@dataclass(frozen=True)
class LogOptions:
    """Logging."""

    log_level: str = option(
        "info", "Lowest level logged.", choices=("debug", "info", "warning", "error"), variables=("VLLM_LOGGING_LEVEL",)
    )
    log_format: str = option("text", "text for people, json for log collectors.", choices=("text", "json"))
    log_file: str | None = option(
        None, "File for all log lines; the terminal then shows only warnings and errors. `-` is the terminal. Default: "
        "the terminal; for `quire serve`, quire/serve-PORT.log in $XDG_STATE_HOME (~/.local/state), or the terminal "
        "with --log-level debug. `quire run-batch` removes the file once the batch is done.", metavar="PATH",
    )  # fmt: skip
    log_config_file: str | None = option(
        None, "JSON or (.yaml) YAML file with a configuration for Python's logging.config.dictConfig, for all "
        "processes. The other options apply to what it does not configure; its formats can use %(service)s and "
        "%(request_id)s.", metavar="PATH", variables=("VLLM_LOGGING_CONFIG_PATH",),
    )  # fmt: skip
