"""A tokenizer service as a separate process, to be killed, frozen, drained and restarted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.support.engine_process import ROOT, free_port
from tests.support.waiting import WAIT_SECONDS


class TokenizerProcess:
    """Started at once; `restart` does what a supervisor would."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self._command = [
            sys.executable, "-m", "quire", "tokenizer", str(folder), "--port", self.address.rpartition(":")[2],
            *arguments,
        ]  # fmt: skip
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.Popen(self._command, cwd=ROOT, stderr=subprocess.DEVNULL, env=environment)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(WAIT_SECONDS)

    def restart(self) -> None:
        """Restarts the process, once it has ended."""
        self.process.wait(WAIT_SECONDS)
        self.process = self._start()
