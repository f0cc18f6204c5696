"""Child processes: started together, restarted when they die, stopped in order. Knows nothing of what they do."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from quire.errors import StartupError

logger = logging.getLogger(__name__)

# A process that dies this often in this time will not get better by another start.
_MAX_DEATHS = 5
_DEATHS_SECONDS = 60.0
_BACKOFF_SECONDS = (0.2, 0.5, 1.0, 2.0, 5.0)
_KILL_AFTER_SECONDS = 5.0
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class ProcessSpec:
    """How to start one service."""

    name: str
    arguments: Sequence[str]  # of `quire`
    environment: Mapping[str, str]


@dataclass
class _Child:
    spec: ProcessSpec
    process: subprocess.Popen[bytes]
    deaths: deque[float] = field(default_factory=deque)
    restart_at: float | None = None


class Supervisor:
    """Owns the processes of one stack."""

    def __init__(self, specs: Sequence[ProcessSpec]) -> None:
        self._children = [_Child(spec, _start(spec)) for spec in specs]

    def check_started(self) -> None:
        """While starting, a death is final: its cause is on the terminal already.

        Raises:
            StartupError: a process has ended.
        """
        for child in self._children:
            if child.process.poll() is not None:
                raise StartupError(
                    f"{child.spec.name} did not start (exit code {child.process.returncode}); see above."
                )

    def restart_dead(self) -> None:
        """Starts what has died since the last call again, with a growing pause.

        Raises:
            StartupError: a process dies again and again.
        """
        now = time.monotonic()
        for child in self._children:
            if child.restart_at is not None and now >= child.restart_at:
                child.restart_at = None
                child.process = _start(child.spec)
            elif child.restart_at is None and child.process.poll() is not None:
                self._schedule_restart(child, now)

    def _schedule_restart(self, child: _Child, now: float) -> None:
        child.deaths.append(now)
        while now - child.deaths[0] > _DEATHS_SECONDS:
            child.deaths.popleft()
        if len(child.deaths) > _MAX_DEATHS:
            raise StartupError(
                f"{child.spec.name} died {_MAX_DEATHS + 1} times within {_DEATHS_SECONDS:g} s; giving up."
            )
        pause = _BACKOFF_SECONDS[len(child.deaths) - 1]
        code = child.process.returncode
        logger.warning("%s died (exit code %d); starting it again in %g s", child.spec.name, code, pause)
        child.restart_at = now + pause

    def stop(self, first: str, timeout: float) -> None:
        """Ends the process named `first` gracefully, then all others; kills what does not end.

        Args:
            timeout: seconds for `first` to finish what it has.
        """
        ahead = [child for child in self._children if child.spec.name == first]
        rest = [child for child in self._children if child.spec.name != first]
        _terminate(ahead, timeout)
        _terminate(rest, _KILL_AFTER_SECONDS)


def _start(spec: ProcessSpec) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603  (our own command line, no shell)
        [sys.executable, "-m", "quire", *spec.arguments],
        env={**os.environ, **spec.environment},
        stdin=subprocess.DEVNULL,
        # Ctrl-C reaches the supervisor alone, which stops the services in order.
        start_new_session=True,
        preexec_fn=_die_with_parent,
    )


def _die_with_parent() -> None:
    """In the child: asks the kernel for a SIGTERM when the supervisor is gone, however it went."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _terminate(children: Sequence[_Child], timeout: float) -> None:
    for child in children:
        child.process.terminate()
    deadline = time.monotonic() + timeout
    for child in children:
        try:
            child.process.wait(max(0.0, deadline - time.monotonic()))
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            _kill(child)


def _kill(child: _Child) -> None:
    logger.warning("%s does not end; killing it", child.spec.name)
    child.process.kill()
    child.process.wait()
