"""The client of `benchmarks.pooling`: concurrent streams that request embeddings, each a thread with a connection."""

from __future__ import annotations

import http.client
import json
import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

_SECONDS = 300


@dataclass(frozen=True)
class Outcome:
    """How long a load took."""

    seconds: float
    latencies: Sequence[float]  # of each request, in seconds


def embed(port: int, requests: Sequence[Sequence[str]], streams: int) -> Outcome:
    """Sends all requests, `streams` at a time.

    Raises:
        RuntimeError: one fails.
    """
    bodies: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    for texts in requests:
        bodies.put(json.dumps({"model": "bench", "input": list(texts), "encoding_format": "base64"}).encode())
    latencies: list[float] = []
    failures: list[str] = []
    threads = [threading.Thread(target=_work, args=(port, bodies, latencies, failures)) for _ in range(streams)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise RuntimeError(failures[0])
    return Outcome(time.perf_counter() - start, latencies)


def _work(port: int, bodies: queue.SimpleQueue[bytes], latencies: list[float], failures: list[str]) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_SECONDS)
    try:
        while not failures:
            body = bodies.get_nowait()
            start = time.perf_counter()
            connection.request("POST", "/v1/embeddings", body, {"content-type": "application/json"})
            response = connection.getresponse()
            content = response.read()
            latencies.append(time.perf_counter() - start)
            if response.status != 200:
                failures.append(f"{response.status}: {content[:500]!r}")
    except queue.Empty:
        pass
    except OSError as error:
        failures.append(str(error))
    finally:
        connection.close()


def answers(port: int) -> bool:
    """Whether the server at a port embeds a text."""
    try:
        embed(port, [["abc"]], 1)
    except RuntimeError:
        return False
    return True
