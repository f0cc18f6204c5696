"""Outlier ejection: rates how well workers do, and keeps new requests away from bad ones for a while."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

_ERRORS_IN_A_ROW = 5
_SLOW_FACTOR = 3.0  # times the median time per output token, scaled by what is usual of the worker
_SLOW_SECONDS = 10.0
_EJECTION_SECONDS = (10.0, 20.0, 40.0, 80.0, 160.0, 300.0)
_FORGIVEN_SECONDS = 600.0  # after which the next ejection counts as the first again
_MOST_EJECTED = 0.5  # share of a model's workers
_SHARE_OF_NEW = 0.2  # weight of a new sample in the mean time per output token
_USUAL_SECONDS = 300.0  # time scale on which a worker's usual speed is learned, however busy it is


class EjectionRecord:
    """One worker's record."""

    __slots__ = ("ejected_until", "ejections", "errors", "reason", "rested", "slow_since", "tpot", "usual")

    def __init__(self) -> None:
        self.errors = 0  # in a row
        self.ejections = 0
        self.ejected_until = 0.0
        self.reason = ""
        self.tpot = 0.0  # current mean time per output token, in seconds; 0 until known
        self.usual = 0.0  # long-term ratio of that to the median of its model's workers; 0 until known
        self.slow_since: float | None = None
        # When an operator's hold on it ended; infinite while held. Requests from before had been standing still.
        self.rested = -math.inf

    def decoded(self, tokens: float, seconds: float) -> None:
        """Takes in how long a request's decoding took."""
        tpot = seconds / tokens
        self.tpot += _SHARE_OF_NEW * (tpot - self.tpot) if self.tpot else tpot


class Ejectable(Protocol):
    """A worker that may be ejected."""

    @property
    def ejection(self) -> EjectionRecord: ...

    @property
    def ready(self) -> bool: ...

    @property
    def names(self) -> Sequence[str]: ...


class OutlierEjection:
    """Ejects workers after five errors in a row, or when they have been far slower than usual for ten seconds.

    Of the workers that serve the same model, it never ejects the last ready one, and never more than half.
    """

    def __init__(
        self,
        workers: Callable[[], Collection[Ejectable]],
        clock: Callable[[], float],
        on_ejected: Callable[[], None] = lambda: None,
    ) -> None:
        self._workers = workers
        self._clock = clock
        self._on_ejected = on_ejected
        self._swept = clock()

    def failed(self, worker: Ejectable) -> None:
        """Records that a request failed through the worker's fault."""
        worker.ejection.errors += 1
        if worker.ejection.errors >= _ERRORS_IN_A_ROW:
            self._eject(worker, f"{worker.ejection.errors} errors in a row")

    def succeeded(self, worker: Ejectable) -> None:
        """Records that a request ended well."""
        worker.ejection.errors = 0

    def sweep(self) -> None:
        """Looks for slow workers. Call it a few times a second."""
        now = self._clock()
        share, self._swept = min(1.0, (now - self._swept) / _USUAL_SECONDS), now
        models: dict[str, list[Ejectable]] = {}
        for worker in self._workers():
            if worker.ejection.tpot:
                models.setdefault(_model_of(worker), []).append(worker)
        for known in models.values():
            if len(known) > 1:
                self._compare(known, now, share)

    def _compare(self, known: Collection[Ejectable], now: float, share: float) -> None:
        """Compares the workers of one model with each other.

        Args:
            share: weight of their current speed in their usual speed.
        """
        # Of two workers, the faster one's value: no worker takes three times the mean of both.
        median = statistics.median_low(worker.ejection.tpot for worker in known)
        for worker in known:
            record = worker.ejection
            times = record.tpot / median
            record.usual += share * (times - record.usual) if record.usual else times
            if times <= _SLOW_FACTOR * max(1.0, record.usual):
                record.slow_since = None
            elif record.slow_since is None:
                record.slow_since = now
            elif now - record.slow_since > _SLOW_SECONDS:
                self._eject(worker, f"{record.tpot * 1e3:.0f} ms per token, the median is {median * 1e3:.0f}")
                record.slow_since, record.tpot = None, 0.0

    def _eject(self, worker: Ejectable, why: str) -> None:
        now, model = self._clock(), _model_of(worker)
        workers = [other for other in self._workers() if _model_of(other) == model]
        if worker.ejection.ejected_until > now:
            return
        ejected = sum(other.ejection.ejected_until > now for other in workers)
        others_ready = any(other.ready for other in workers if other is not worker)
        if not others_ready or (ejected + 1) > _MOST_EJECTED * len(workers):
            return
        record = worker.ejection
        if now - record.ejected_until > _FORGIVEN_SECONDS:
            record.ejections = 0
        seconds = _EJECTION_SECONDS[min(record.ejections, len(_EJECTION_SECONDS) - 1)]
        record.ejections += 1
        record.errors = 0
        record.ejected_until = now + seconds
        record.reason = f"gets no new requests for {seconds:g} s: {why}"
        self._on_ejected()


def _model_of(worker: Ejectable) -> str:
    return worker.names[0] if worker.names else ""
