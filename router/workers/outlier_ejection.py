"""How well a worker does its work, and whether it gets a rest from new requests (outlier ejection)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

_ERRORS_IN_A_ROW = 5
_SLOW_FACTOR = 3.0  # of the median time per output token, and of as many times that as is usual of the worker
_SLOW_SECONDS = 10.0
_EJECTION_SECONDS = (10.0, 20.0, 40.0, 80.0, 160.0, 300.0)
_FORGIVEN_SECONDS = 600.0  # after which the next ejection is a first one again
_MOST_EJECTED = 0.5  # of the workers
_SHARE_OF_NEW = 0.2  # in the mean time per output token
_USUAL_SECONDS = 300.0  # in which what is usual of a worker is learnt, however busy it is


class EjectionRecord:
    """One worker's record."""

    __slots__ = ("ejected_until", "ejections", "errors", "reason", "rested", "slow_since", "tpot", "usual")

    def __init__(self) -> None:
        self.errors = 0  # in a row
        self.ejections = 0
        self.ejected_until = 0.0
        self.reason = ""
        self.tpot = 0.0  # mean time per output token now, in seconds; 0 until known
        self.usual = 0.0  # how many times the median of its model's workers that is, over a long time; 0 until known
        self.slow_since: float | None = None
        # When it came back from what an operator made of it; infinite until then. What it had stood still meanwhile.
        self.rested = -math.inf

    def decoded(self, tokens: float, seconds: float) -> None:
        """A request's decoding took so long."""
        tpot = seconds / tokens
        self.tpot += _SHARE_OF_NEW * (tpot - self.tpot) if self.tpot else tpot


class Ejectable(Protocol):
    """A worker."""

    @property
    def ejection(self) -> EjectionRecord: ...

    @property
    def ready(self) -> bool: ...

    @property
    def names(self) -> Sequence[str]: ...


class OutlierEjection:
    """Ejects workers: after five errors in a row, or when they have been far slower than usual for ten seconds.

    Of those that serve the same model, never the last ready one, and never more than half.
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
        """A request failed through the worker's fault."""
        worker.ejection.errors += 1
        if worker.ejection.errors >= _ERRORS_IN_A_ROW:
            self._eject(worker, f"{worker.ejection.errors} errors in a row")

    def succeeded(self, worker: Ejectable) -> None:
        """A request ended well."""
        worker.ejection.errors = 0

    def sweep(self) -> None:
        """Looks for slow ones. Call it a few times a second."""
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
        """Workers of one model with each other.

        Args:
            share: of what they are now in what is usual of them.
        """
        # Of two workers the faster one's: the mean of both is never a third of what the slower one takes.
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
        record.reason = f"gets nothing new for {seconds:g} s: {why}"
        self._on_ejected()


def _model_of(worker: Ejectable) -> str:
    return worker.names[0] if worker.names else ""
