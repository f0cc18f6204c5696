"""Receives the commands of a rank that computes its passes in lockstep with other data ranks."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from engine_svc.executor.messages import Command, Step
from engine_svc.parallel.lockstep import Lockstep

# How long a rank that has run a step makes others wait for its next plan, which may already be on its way.
_NEXT_PLAN_SECONDS = 0.002


class LockstepCommands:
    """Takes part in other data ranks' passes while there is no command. See parallel/lockstep.py.

    When the control side is gone, it continues until those of all data ranks are: they may still have requests.
    """

    def __init__(self, receive: Callable[[], Command], lockstep: Lockstep, run_empty: Callable[[], None]) -> None:
        """
        Args:
            receive: returns the next command of the control side; called in another thread.
            run_empty: runs a pass without tokens.
        """
        self._lockstep, self._run_empty = lockstep, run_empty
        self._received: queue.SimpleQueue[Command | EOFError | None] = queue.SimpleQueue()  # None: check the lockstep
        self._had_step = False
        self._gone: EOFError | None = None  # the control side
        threading.Thread(target=self._read, args=(receive,), name="commands", daemon=True).start()

    def wake(self) -> None:
        """Makes a pending `receive` check the lockstep. May be called from any thread."""
        self._received.put(None)

    def receive(self) -> Command:
        """Waits for the next command, taking part in other ranks' passes meanwhile.

        Raises:
            EOFError: the control side is gone, and so are those of all data ranks, or the others wait for its plan.
        """
        while True:
            command = self._look()
            if isinstance(command, EOFError):
                self._gone = command
                self._lockstep.leave()
            elif command is not None:
                self._had_step = isinstance(command, Step)
                return command
            if self._lockstep.is_awaited:
                if self._gone is not None:  # the plan that all ranks wait for will not come
                    raise self._gone
            elif self._lockstep.is_running or self._lockstep.is_called():
                self._had_step = False
                self._stand_by()
            elif self._lockstep.is_over:
                self._lockstep.close()
                raise EOFError("the control sides of all data-parallel ranks have gone")

    def _stand_by(self) -> None:
        try:
            self._lockstep.stand_by(self._run_empty)
        except Exception as error:
            raise self._lockstep.explain(error) from error

    def explain(self, error: Exception) -> Exception:
        """See Lockstep.explain."""
        return self._lockstep.explain(error)

    def receive_at_once(self) -> Command:
        """Waits for a command that belongs to the last one, without taking part in passes: one is already under way.

        Raises:
            EOFError: the control side is gone.
        """
        while (command := self._received.get()) is None:
            pass
        if isinstance(command, EOFError):
            raise command
        return command

    def _look(self) -> Command | EOFError | None:
        """Returns what has been received; waits for it only if there is nothing else to do."""
        try:
            return self._received.get(timeout=self._patience())
        except queue.Empty:
            return None

    def _patience(self) -> float | None:
        """Seconds to wait for a command; None means until a command or a call arrives.

        Earlier calls do not end the wait if they were taken from the queue while there was something else to do.
        """
        if self._lockstep.is_awaited:
            return None
        if self._lockstep.is_running or self._lockstep.is_called():
            return _NEXT_PLAN_SECONDS if self._had_step and self._lockstep.is_first_stage else 0
        return 0 if self._lockstep.is_over else None

    def _read(self, receive: Callable[[], Command]) -> None:
        try:
            while True:
                self._received.put(receive())
        except (EOFError, OSError) as error:
            self._received.put(error if isinstance(error, EOFError) else EOFError(str(error)))
