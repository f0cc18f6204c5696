"""How long each service and the whole stack take to become ready: `python -m benchmarks.startup`."""

from __future__ import annotations

import argparse
import signal
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from benchmarks.machine import heading
from benchmarks.models import SHAPES, build
from quire.serve.ports import free_ports

_LIMIT_SECONDS = 120.0


def grpc_ready(port: int) -> bool:
    """Whether a gRPC service says SERVING."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=1)
        except grpc.RpcError:
            return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def http_ready(port: int, path: str) -> bool:
    """Whether a GET is answered with 200."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=1) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def seconds_until(ready: Callable[[], bool], arguments: Sequence[str]) -> float:
    """Starts `quire ARGUMENTS`, waits until it is ready, stops it."""
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "quire", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        while not ready():
            if process.poll() is not None or time.perf_counter() - start > _LIMIT_SECONDS:
                raise SystemExit(f"quire {' '.join(arguments)} does not become ready")
            time.sleep(0.01)
        return time.perf_counter() - start
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="tiny-llama")
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    folder = Path(".cache/models") / arguments.shape
    build(arguments.shape, folder)
    port = free_ports(1)[0]
    number, model = ["--port", str(port)], str(folder)
    cases: dict[str, tuple[Callable[[], bool], list[str]]] = {
        "router": (lambda: grpc_ready(port), ["router", *number]),
        "tokenizer": (lambda: grpc_ready(port), ["tokenizer", model, *number]),
        "gateway": (lambda: http_ready(port, "/livez"), ["gateway", *number]),
        "engine": (lambda: grpc_ready(port), ["engine", model, *number]),
        "whole stack": (lambda: http_ready(port, "/health"), ["serve", model, *number]),
    }
    print(heading())
    print(f"`{arguments.shape}`; seconds from the command to ready, {arguments.runs} runs.\n")
    print("| what | median | worst |\n|---|---|---|")
    for name, (ready, command) in cases.items():
        seconds = [seconds_until(ready, command) for _ in range(arguments.runs)]
        print(f"| {name} | {statistics.median(seconds):.2f} | {max(seconds):.2f} |")


if __name__ == "__main__":
    main()
