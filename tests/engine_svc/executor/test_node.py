"""What a node without a worker does when it is told to end; tests/integration/test_nodes.py has its ranks."""

from __future__ import annotations

import signal

from engine_svc.executor.node import _first_signal


def test_the_first_signal_to_end_is_caught_and_the_next_one_ends_the_process() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with _first_signal() as signals:
        assert not signals
        signal.raise_signal(signal.SIGTERM)
        assert signals == [signal.SIGTERM]
        assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
