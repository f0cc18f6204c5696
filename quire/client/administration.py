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
_ADVICE = "`quire serve --admin-port 8100` has such a port; --admin-url names another."
_LEAVING = click.Option(
    ["--mode"], type=click.Choice([leaving.value for leaving in Leaving]), default=Leaving.ABORT.value,
    show_default=True, help="What becomes of requests that run: they end, are waited for, or go on afterwards.",
)  # fmt: skip
_LEVEL = click.Option(
    ["--level"], type=click.Choice([str(level.value) for level in SleepLevel]), default="1", show_default=True,
    help="What is given back: 0 nothing, 1 the KV cache, 2 the weights too.",
)  # fmt: skip
_COMMON = (
    click.Option(["--admin-url"], default=_URL, show_default=True,
                 help="The admin port of a server (--admin-port)."),
    click.Option(["--admin-api-key"], envvar="QUIRE_ADMIN_API_KEY", help="Key of the admin port."),
    click.Option(["--timeout-seconds"], type=click.FloatRange(0.1, 3600), default=300.0, show_default=True,
                 help="Time for all of them to have done it."),
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
            _command, "drain", "Has workers (host:port) take no new requests; what they have gets on.", named=True
        ),
        "undrain": partial(_command, "undrain", "Has workers (host:port) take new requests again.", named=True),
        "pause": partial(_command, "pause", "Has no request of the workers get on; all workers by default.", _LEAVING),
        "resume": partial(_command, "resume", "Has them get on."),
        "sleep": partial(
            _command,
            "sleep",
            "Has workers give memory back (--enable-sleep-mode); all by default.",
            _LEVEL,
            _LEAVING,
        ),
        "wake": partial(_command, "wake", "Has workers take their memory again; all by default.", path="/wake_up"),
    }
)
