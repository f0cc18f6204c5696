"""How long each service and the whole stack take to become ready: `python -m benchmarks.startup`.

The first start of each is not counted: it loads files into the page cache and compiles Python modules, as an
installation does. A virtual machine's host provides memory slowly, and takes back what has been free for a second or
two: with `--memory-at-hand`, each start finds memory that the machine still has, as on a physical machine. Unknown
options are passed to the engine: `--shape qwen3-0.6b --max-model-len 8192 --dtype float32`.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from benchmarks.machine import heading
from benchmarks.models import SHAPES, build
from benchmarks.stopping import unwinding
from quire.serve.ports import free_ports

_LIMIT_SECONDS = 120.0
# A readiness check takes one to three milliseconds of CPU time, on both sides together, away from the start.
_ASK_SECONDS = 0.025
_AT_HAND_BYTES = 4 << 30  # more than a start takes


def grpc_ready(port: int) -> bool:
    """Whether a gRPC service reports SERVING."""
    # A separate subchannel pool, so that the backoff of an earlier channel does not delay this one.
    options = (("grpc.use_local_subchannel_pool", 1),)
    with grpc.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
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


@dataclass(frozen=True)
class Start:
    """Time and CPU time of a start."""

    seconds: float  # from the command to ready
    cpu_seconds: float  # of all its processes until they have ended, so independent of other load


def measure(ready: Callable[[], bool], arguments: Sequence[str]) -> Start:
    """Starts `quire ARGUMENTS`, waits until it is ready, stops it."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    cpu, start = _cpu_of_children(), time.perf_counter()
    with tempfile.TemporaryFile("w+") as said, unwinding():
        process = subprocess.Popen(
            [sys.executable, "-m", "quire", *arguments], stdout=subprocess.DEVNULL, stderr=said, env=environment
        )
        try:
            while not ready():
                if process.poll() is not None or time.perf_counter() - start > _LIMIT_SECONDS:
                    said.seek(0)
                    raise SystemExit(f"quire {' '.join(arguments)} does not become ready:\n{said.read()}")
                time.sleep(_ASK_SECONDS)
            seconds = time.perf_counter() - start
        finally:
            process.terminate()
            process.wait(30)
    return Start(seconds, _cpu_of_children() - cpu)


def bring_memory(num_bytes: int = _AT_HAND_BYTES) -> None:
    """Touches memory, in huge pages if possible, and frees it, so that the machine has it for the next process."""
    with mmap.mmap(-1, num_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        if hasattr(mmap, "MADV_HUGEPAGE"):
            memory.madvise(mmap.MADV_HUGEPAGE)
        whole = (ctypes.c_char * num_bytes).from_buffer(memory)
        ctypes.memset(whole, 0, num_bytes)
        del whole  # else the memory could not be closed


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="tiny-llama")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument(
        "--memory-at-hand", action="store_true",
        help=f"has {_AT_HAND_BYTES >> 30} GiB of memory touched and given back before each start",
    )  # fmt: skip
    arguments, options = parser.parse_known_args()
    folder = Path(".cache/models") / arguments.shape
    build(arguments.shape, folder)
    port = free_ports(1)[0]
    number, model = ["--port", str(port)], str(folder)
    cases: dict[str, tuple[Callable[[], bool], list[str]]] = {
        "router": (lambda: grpc_ready(port), ["router", *number]),
        "tokenizer": (lambda: grpc_ready(port), ["tokenizer", model, *number]),
        "gateway": (lambda: http_ready(port, "/livez"), ["gateway", *number]),
        "engine": (lambda: grpc_ready(port), ["engine", model, *number, *options]),
        "whole stack": (lambda: http_ready(port, "/health"), ["serve", model, *number, *options]),
    }
    print(heading())
    shape = " ".join((arguments.shape, *options))
    memory = ", memory at hand" if arguments.memory_at_hand else ""
    print(
        f"`{shape}`{memory}; seconds from the command to ready, and of CPU time until stopped, {arguments.runs} runs."
    )
    print()
    print("| what | median | best | worst | CPU (median) |\n|---|---|---|---|---|")
    for name, (ready, command) in cases.items():
        starts = []
        for _ in range(1 + arguments.runs):
            if arguments.memory_at_hand:
                bring_memory()
            starts.append(measure(ready, command))
        del starts[0]
        seconds = [start.seconds for start in starts]
        cpu = statistics.median(start.cpu_seconds for start in starts)
        print(f"| {name} | {statistics.median(seconds):.2f} | {min(seconds):.2f} | {max(seconds):.2f} | {cpu:.2f} |")


if __name__ == "__main__":
    main()
