"""`quire workers drain` and similar: operators' commands to workers, through a server's admin port."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any
from urllib.parse import urlencode

import click

from quire.client.api import Api
from quire.client.text_table import printable, text_table
from quire.sleep import Leaving, SleepLevel

_URL = "http://localhost:8100"
_ADVICE = "Start the server with --admin-port 8100, or name another admin port with --admin-url."
_LEAVING = click.Option(
    ["--mode"], type=click.Choice([leaving.value for leaving in Leaving]), default=Leaving.ABORT.value,
    show_default=True, help="What happens to running requests: they end, are waited for, or continue afterwards.",
)  # fmt: skip
_LEVEL = click.Option(
    ["--level"], type=click.Choice([str(level.value) for level in SleepLevel]), default="1", show_default=True,
    help="What memory is released: 0 none, 1 the KV cache, 2 the weights too.",
)  # fmt: skip
_COMMON = (
    click.Option(["--admin-url"], default=_URL, show_default=True,
                 help="URL of a server's admin port (--admin-port)."),
    click.Option(["--admin-api-key"], envvar="QUIRE_ADMIN_API_KEY", help="API key of the admin port."),
    click.Option(["--timeout-seconds"], type=click.FloatRange(0.1, 3600), default=300.0, show_default=True,
                 help="Maximum time for all workers to finish."),
)  # fmt: skip


def _ask(
    path: str, worker: Sequence[str], admin_url: str, admin_api_key: str | None, timeout_seconds: float, **query: Any
) -> None:
    """Sends a command and prints the resulting states of the workers."""
    asked = [*(("worker", address) for address in worker), ("timeout_seconds", timeout_seconds), *query.items()]
    answer = Api(admin_url, admin_api_key, _ADVICE, "--admin-url", _URL).post(f"{path}?{urlencode(asked)}")
    rows = [[str(each["worker"]), _state(each)] for each in answer["workers"]]
    click.echo("\n".join(text_table(("WORKER", "STATE"), rows, 2)))


def _state(worker: Mapping[str, Any]) -> str:
    """The worker's state in words, such as `draining, asleep (level 1)`."""
    level = worker.get("sleep_level")
    words = {
        "draining": worker.get("is_draining"),
        f"asleep (level {level})": level is not None,
        "paused": level is None and worker.get("is_paused"),
        "profiling": worker.get("is_profiling"),
    }
    return printable(", ".join(word for word, holds in words.items() if holds) or "in service")


def _command(name: str, help: str, *options: click.Option, path: str = "", named: bool = False) -> click.Command:
    """Builds a command.

    Args:
        path: path of the route, if it differs from the name.
        named: whether workers must be named; otherwise naming none means all.
    """
    workers = click.Argument(["worker"], nargs=-1, required=named)
    ask = partial(_ask, path or f"/{name}")
    return click.Command(name, callback=ask, params=[workers, *options, *_COMMON], help=help)


COMMANDS: Mapping[str, Callable[[], click.Command]] = MappingProxyType(
    {
        "drain": partial(
            _command,
            "drain",
            "Stops sending new requests to workers (host:port); their running requests continue.",
            named=True,
        ),
        "undrain": partial(_command, "undrain", "Sends new requests to workers (host:port) again.", named=True),
        "pause": partial(_command, "pause", "Pauses the requests of workers; of all workers by default.", _LEAVING),
        "resume": partial(_command, "resume", "Resumes the requests of workers; of all workers by default."),
        "sleep": partial(
            _command,
            "sleep",
            "Makes workers release memory (needs --enable-sleep-mode); all by default.",
            _LEVEL,
            _LEAVING,
        ),
        "wake": partial(
            _command, "wake", "Makes workers allocate their memory again; all by default.", path="/wake_up"
        ),
    }
)
