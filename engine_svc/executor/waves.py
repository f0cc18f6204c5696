"""Where a rank's commands come from while it computes its passes together with other data ranks."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from engine_svc.executor.messages import Command, Step
from engine_svc.parallel.lockstep import Lockstep

# For so long a rank that has run a step lets the others wait: the next plan is on its way while its sequences go on.
_NEXT_PLAN_SECONDS = 0.002


class LockstepCommands:
    """Takes part in the others' passes while there is no command. See parallel/lockstep.py.

    When the control side is gone, it goes on until those of all data ranks are: they may have requests to end.
    """

    def __init__(self, receive: Callable[[], Command], lockstep: Lockstep, run_empty: Callable[[], None]) -> None:
        """
        Args:
            receive: the next command of the control side; it is called in another thread.
            run_empty: runs a pass without tokens.
        """
        self._lockstep, self._run_empty = lockstep, run_empty
        self._received: queue.SimpleQueue[Command | EOFError | None] = queue.SimpleQueue()  # None: look at the lockstep
        self._had_step = False
        self._gone: EOFError | None = None  # the control side
        threading.Thread(target=self._read, args=(receive,), name="commands", daemon=True).start()

    def wake(self) -> None:
        """Has whoever waits for a command look for waves; may be called from any thread."""
        self._received.put(None)

    def receive(self) -> Command:
        """The next command, of which no other rank waits for the end of the last one.

        Raises:
            EOFError: the control side is gone, and those of all data ranks.
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
                if self._gone is not None:  # the plan that all wait for will not come
                    raise self._gone
            elif self._lockstep.is_running or self._lockstep.is_called():
                self._had_step = False
                self._stand_by()
            elif self._lockstep.is_over:
                self._lockstep.close()
                raise EOFError("the control sides of all data-parallel ranks are gone")

    def _stand_by(self) -> None:
        try:
            self._lockstep.stand_by(self._run_empty)
        except Exception as error:
            raise self._lockstep.explain(error) from error

    def explain(self, error: Exception) -> Exception:
        """See Lockstep.explain."""
        return self._lockstep.explain(error)

    def receive_at_once(self) -> Command:
        """A command that belongs to the last one: a pass is under way, and no other can be.

        Raises:
            EOFError: the control side is gone.
        """
        while (command := self._received.get()) is None:
            pass
        if isinstance(command, EOFError):
            raise command
        return command

    def _look(self) -> Command | EOFError | None:
        """What there is; waits for something to come only if there is nothing else to do."""
        try:
            return self._received.get(timeout=self._patience())
        except queue.Empty:
            return None

    def _patience(self) -> float | None:
        """Seconds to wait for a command; None: until there is one, or a call. Those that came already, and were taken
        out while there was something else to do, call no more."""
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
