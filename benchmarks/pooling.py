"""Compares Quire's embeddings with sentence-transformers and vLLM's CPU build, in one run.

`python -m benchmarks.pooling [--peer VENV]` takes a virtual environment with vLLM's CPU build (docs/performance.md says
how to make one). Servers are called through HTTP. The library runs in its own process without any server, and gets all
texts of a load at once, or one by one if requests have a single text. They take turns (A B C A B C), because the speed
of a shared machine drifts: only the ratios count.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.machine import heading
from benchmarks.pooling_client import answers, embed
from benchmarks.pooling_models import SHAPES, folder_of
from benchmarks.servers import Server, quire, running, vllm

_LIBRARY = "sentence-transformers"
_LIBRARY_BATCH = 32  # its default
_WORDS = """
time year people way day man thing woman life child world school state family student group country problem hand part
place case week company system program question work government number night point home water room mother area money
story fact month lot right study book eye job word business issue side kind head house service friend
"""
_SEED = 7
TEXTS, LATENCY = "texts/s", "latency ms"


@dataclass(frozen=True)
class Load:
    """Texts, and how they are sent."""

    name: str
    count: int
    words: tuple[int, int]  # fewest and most words of a text
    batch: int  # texts per request
    streams: int

    @property
    def texts(self) -> list[str]:
        """Random texts, the same in every run."""
        draw, words = random.Random(_SEED), _WORDS.split()
        return [" ".join(draw.choices(words, k=draw.randint(*self.words))) for _ in range(self.count)]

    @property
    def requests(self) -> list[list[str]]:
        """The texts of each request."""
        texts = self.texts
        return [texts[start : start + self.batch] for start in range(0, len(texts), self.batch)]


@dataclass(frozen=True)
class Measure:
    """One figure of one contender in one round."""

    shape: str
    load: str
    contender: str
    figure: str
    value: float


def loads(scale: float) -> list[Load]:
    """The loads: sentences one by one and many at a time, long passages, and texts of all lengths."""

    def count(texts: int, batch: int) -> int:
        return max(batch, round(texts * scale) // batch * batch)

    return [
        Load("1 sentence, 1 stream", count(200, 1), (5, 20), 1, 1),
        Load("1 sentence, 32 streams", count(2000, 1), (5, 20), 1, 32),
        Load("64 sentences, 4 streams", count(4096, 64), (5, 20), 64, 4),
        Load("16 passages, 4 streams", count(2048, 16), (100, 180), 16, 4),
        Load("64 texts of all lengths, 4 streams", count(1024, 64), (3, 180), 64, 4),
    ]


def measure_server(shape: str, server: Server, some: Sequence[Load]) -> Iterator[Measure]:
    """Starts the server, runs all loads and stops it."""
    with tempfile.TemporaryDirectory() as folder, running(server, Path(folder) / "server.log", answers):
        for load in some:
            embed(server.port, load.requests[: 4 * load.streams], load.streams)  # warm
            outcome = embed(server.port, load.requests, load.streams)
            yield Measure(shape, load.name, server.name, TEXTS, load.count / outcome.seconds)
            yield Measure(shape, load.name, server.name, LATENCY, statistics.median(outcome.latencies) * 1e3)


def measure_library(shape: str, model: Path, dtype: str, some: Sequence[Load]) -> Iterator[Measure]:
    """Runs all loads with the library."""
    command = [sys.executable, "-m", "benchmarks.pooling_library", str(model), "--dtype", dtype]
    name = f"{_LIBRARY} {dtype}"
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        for load in some:
            alone = load.batch == 1
            line = json.dumps({"texts": load.texts, "batch": 1 if alone else _LIBRARY_BATCH})
            for _ in range(2):  # the first one is a warm-up
                process.stdin.write(line + "\n")
                process.stdin.flush()
                seconds = float(process.stdout.readline())
            yield Measure(shape, load.name, name, TEXTS, load.count / seconds)
            if load.streams == 1:
                yield Measure(shape, load.name, name, LATENCY, seconds / load.count * 1e3)
        process.stdin.close()


def contenders(shape: str, model: Path, arguments: argparse.Namespace, some: Sequence[Load]) -> Iterator[Measure]:
    """Measures each contender once."""
    ports = itertools.count(arguments.port, 50)
    for dtype in arguments.dtype:
        own = quire(f"Quire {dtype}", model, next(ports), ["--runner", "pooling", "--dtype", dtype])
        yield from measure_server(shape, own, some)
        if arguments.library:
            yield from measure_library(shape, model, dtype, some)
        if arguments.peer:
            peer = vllm(arguments.peer, model, next(ports), ["--runner", "pooling", "--dtype", dtype], 2)
            yield from measure_server(shape, Server(f"vLLM {dtype}", peer.command, peer.environment, peer.port), some)


def report(measures: Sequence[Measure]) -> str:
    """Medians as Markdown; ours with their ratios to the peers' of the same dtype."""
    medians: dict[tuple[str, str, str, str], float] = {}
    keys = list(dict.fromkeys((each.shape, each.load, each.contender, each.figure) for each in measures))
    for key in keys:
        values = [each.value for each in measures if (each.shape, each.load, each.contender, each.figure) == key]
        medians[key] = statistics.median(values)
    peers = ("vLLM", _LIBRARY)
    lines = [
        f"| shape | load | who | {TEXTS} | {LATENCY} | " + " | ".join(f"{TEXTS} / {peer}'s" for peer in peers) + " |"
    ]
    lines.append("|---" * (5 + len(peers)) + "|")
    for shape, load, who in dict.fromkeys(key[:3] for key in keys):
        rate, latency = medians[shape, load, who, TEXTS], medians.get((shape, load, who, LATENCY))
        ratios = []
        for peer in peers:
            theirs = medians.get((shape, load, f"{peer} {who.rpartition(' ')[2]}", TEXTS))
            ratios.append(f"{rate / theirs:.2f}" if theirs and who.startswith("Quire") else "")
        cells = [shape, load, who, f"{rate:.1f}", "" if latency is None else f"{latency:.1f}", *ratios]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", type=Path, help="virtual environment with vLLM's CPU build")
    parser.add_argument("--library", action=argparse.BooleanOptionalAction, default=True, help=_LIBRARY)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--dtype", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--loads", nargs="+", help="those whose names hold one of these")
    parser.add_argument("--scale", type=float, default=1.0, help="of the numbers of texts")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--port", type=int, default=8630)
    return parser.parse_args()


def main() -> None:
    arguments = _parse()
    print(heading())
    some = [
        load
        for load in loads(arguments.scale)
        if not arguments.loads or any(part in load.name for part in arguments.loads)
    ]
    measures = []
    for shape in arguments.shapes:
        model = folder_of(shape, Path(".cache/models"))
        for _ in range(arguments.rounds):
            for found in contenders(shape, model, arguments, some):
                print(f"{time.strftime('%H:%M:%S')} {found.shape} {found.load} {found.contender} {found.figure} "
                      f"{found.value:.2f}", flush=True)  # fmt: skip
                measures.append(found)
    print(report(measures))


if __name__ == "__main__":
    main()
