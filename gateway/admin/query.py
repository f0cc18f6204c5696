"""Validated query parameters of admin routes; unknown ones are rejected."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

from starlette.requests import Request

from gateway.context import context_of
from gateway.services.administration import Administration
from quire.errors import InvalidRequest
from quire.options.nearest import nearest
from quire.sleep import Leaving

_COMMON = ("worker", "timeout_seconds")
_DEFAULT_SECONDS, _MOST_SECONDS = 300.0, 3600.0
_BOOLEANS: Mapping[str, bool] = MappingProxyType({"true": True, "1": True, "false": False, "0": False})
_MOST_SHOWN = 64


class Query:
    """Query parameters of one request. Invalid ones raise InvalidRequest, which names the parameter and the fix."""

    def __init__(self, request: Request, *names: str) -> None:
        """
        Args:
            names: parameters of the route, besides those of all routes: `worker`, repeated for each worker to address
                (all if absent), and `timeout_seconds`.
        """
        self._request = request
        self._given = request.query_params
        known = (*names, *_COMMON)
        for name in self._given:
            if name not in known:
                raise InvalidRequest(
                    f"{name[:_MOST_SHOWN]!r} is not a parameter of "
                    f"{request.url.path}.{nearest(name[:_MOST_SHOWN], known)} It takes {', '.join(known)}.",
                    parameter=name[:_MOST_SHOWN],
                )  # fmt: skip

    @property
    def administration(self) -> Administration:
        """Sends commands to the addressed workers."""
        return Administration(context_of(self._request).fleet, self.workers, self.seconds)

    @property
    def workers(self) -> Sequence[str]:
        """Addresses of the workers; empty means all."""
        return self._given.getlist("worker")

    @property
    def seconds(self) -> float:
        """How long the answer may take."""
        value = self._one("timeout_seconds")
        try:
            seconds = _DEFAULT_SECONDS if value is None else float(value)
        except ValueError:
            seconds = 0.0
        if not 0 < seconds <= _MOST_SECONDS:
            raise self._wrong("timeout_seconds", value or "", f"a number above 0, at most {_MOST_SECONDS:g}")
        return seconds

    def several(self, name: str) -> Sequence[str]:
        """Returns the values of a parameter that may be repeated, or be a comma-separated list."""
        return [part.strip() for value in self._given.getlist(name) for part in value.split(",") if part.strip()]

    def boolean(self, name: str, default: bool) -> bool:
        """Returns a parameter that is true or false."""
        value = self._one(name)
        if value is None:
            return default
        if value.lower() not in _BOOLEANS:
            raise self._wrong(name, value, "true or false")
        return _BOOLEANS[value.lower()]

    def choice(self, name: str, default: str, choices: Collection[str]) -> str:
        """Returns a parameter that must be one of `choices`."""
        value = self._one(name)
        if value is None:
            return default
        if value not in choices:
            raise self._wrong(name, value, f"one of {', '.join(choices)}")
        return value

    def leaving(self, default: Leaving) -> Leaving:
        """Returns `mode`: what happens to requests."""
        return Leaving(self.choice("mode", default.value, [leaving.value for leaving in Leaving]))

    def _one(self, name: str) -> str | None:
        values = self._given.getlist(name)
        if len(values) > 1:
            raise InvalidRequest(f"{name} is given {len(values)} times; give it once.", parameter=name)
        return values[0] if values else None

    def _wrong(self, name: str, value: str, wanted: str) -> InvalidRequest:
        return InvalidRequest(f"{name} is {value[:_MOST_SHOWN]!r}; it must be {wanted}.", parameter=name)
