"""Benefit of speculative decoding: the whole stack with each method compared with one without, on the bundled model.

`python -m benchmarks.speculation` runs a stack for each method and one without speculation, and has them answer the
same questions in turns, at 1, 8 and 32 streams. It prints tokens per second and their ratio to those without
speculation in the same rounds, tokens per step of a sequence with draft tokens, and acceptance by position. Answers are
compared as well. Two equal stacks may differ in speed by a tenth for as long as they run; so each stack that speculates
is also compared with itself, with speculation turned off by the request.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import statistics
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from random import Random
from types import MappingProxyType

from benchmarks.load import Result, Timings, stream
from benchmarks.machine import heading
from benchmarks.processes import running_stack
from benchmarks.speculation_traces import TRACES, Body
from quire.model_folder import DEMO_MODEL

NONE = "none"
METHODS: Mapping[str, str] = MappingProxyType(
    {
        NONE: "",
        "none again": "",  # its difference is noise of the machine
        "ngram": '{"method": "ngram"}',
        "suffix": '{"method": "suffix"}',
        "draft_model": '{"model": "demo_model/quire-demo-draft"}',
    }
)
_COUNTER = re.compile(
    r'^vllm:spec_decode_(\w+)_total\{engine="0",model_name="bench"(?:,position="(\d+)")?\} (\S+)$', re.MULTILINE
)
_SHOWN_POSITIONS = 6
_TOLD_SECONDS = 1.0  # engines and routers report their counters four times a second
_HEADS = ("tokens a step that guessed", "of all tokens", "right at 1, 2, …", "same answers")


@dataclass
class Case:
    """All rounds of one method on one trace with one number of streams."""

    rates: list[float] = field(default_factory=list)  # tokens per second of each round
    counters: Mapping[tuple[str, int], float] = field(default_factory=dict)  # growth of the metrics, by position
    own_plain_rates: list[float] = field(default_factory=list)  # of the same stack with speculation turned off
    answers: list[str] = field(default_factory=list)  # of all rounds
    tokens: int = 0

    def add(self, result: Result, own_plain: Result | None) -> None:
        """Adds a round."""
        self.rates.append(result.tokens_per_second)
        if own_plain:
            self.own_plain_rates.append(own_plain.tokens_per_second)
        self.tokens += result.output_tokens
        self.answers += [timing.text for timing in result.timings]

    @property
    def per_guess(self) -> float:
        """Tokens per sequence in steps that verified draft tokens of it."""
        drafts = self.counters.get(("num_drafts", -1), 0.0)
        return self.counters.get(("num_emitted_tokens", -1), 0.0) / drafts if drafts else 1.0

    @property
    def share(self) -> float:
        """Share of all tokens that came from steps that verified draft tokens."""
        return self.counters.get(("num_emitted_tokens", -1), 0.0) / max(1, self.tokens)

    def acceptance(self) -> Iterator[float]:
        """By position, the share of verified drafts that were right up to it."""
        drafts = self.counters.get(("num_drafts", -1), 0.0)
        for position in range(_SHOWN_POSITIONS if drafts else 0):
            yield self.counters.get(("num_accepted_tokens_per_pos", position), 0.0) / drafts


def main() -> None:
    """Prints the table."""
    arguments = _parse()
    before, cases = heading(), {}
    with ExitStack() as stacks:
        ports = {}
        for index, method in enumerate(arguments.methods):
            ports[method] = arguments.port + index
            options = ["--port", str(ports[method]), "--served-model-name", "bench", "--tool-call-parser", "hermes"]
            options += ["--enable-auto-tool-choice", "--max-num-seqs", "64"]
            config = ["--speculative-config", METHODS[method]] if METHODS[method] else []
            stacks.enter_context(running_stack(arguments.model, [*options, *config]))
        for trace in arguments.traces:
            for streams in arguments.streams:
                found = _measure(ports, trace, streams, arguments.rounds, arguments.requests)
                cases.update({(trace, streams, method): case for method, case in found.items()})
    print(before)
    print(report(cases))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=DEMO_MODEL)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--traces", nargs="+", choices=TRACES, default=list(TRACES))
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=8, help="of each stream in a round")
    parser.add_argument("--port", type=int, default=8140)
    return parser.parse_args()


def _measure(ports: Mapping[str, int], trace: str, streams: int, rounds: int, requests: int) -> dict[str, Case]:
    """Runs all rounds; each asks all stacks the same questions, which no earlier round has asked."""
    _round(ports, trace, streams, Random(f"{trace} {streams} warm-up"), requests)
    cases, before = {method: Case() for method in ports}, _settled_counters(ports)
    for number in range(rounds):
        results = _round(ports, trace, streams, Random(f"{trace} {streams} {number}"), requests)
        for method in ports:
            cases[method].add(results[method], results.get(_own_plain(method)))
    for method, after in _settled_counters(ports).items():
        cases[method].counters = {key: value - before[method].get(key, 0.0) for key, value in after.items()}
    return cases


def _round(ports: Mapping[str, int], trace: str, streams: int, random: Random, requests: int) -> dict[str, Result]:
    bodies = [TRACES[trace](random) for _ in range(requests * streams)]
    # A separate cache salt, so that neither run finds the other's prompts in the prefix cache.
    plain = [body | {"num_speculative_tokens": 0, "cache_salt": "plain"} for body in bodies]
    asked = {method: (port, bodies) for method, port in ports.items()}
    asked |= {_own_plain(method): (port, plain) for method, port in ports.items() if METHODS[method]}
    order = list(asked)
    random.shuffle(order)
    return {name: asyncio.run(_ask(*asked[name], streams)) for name in order}


def _own_plain(method: str) -> str:
    return f"{method}, asked not to guess"


def _settled_counters(ports: Mapping[str, int]) -> dict[str, dict[tuple[str, int], float]]:
    """The metrics of all stacks, once their engines have reported all counters."""
    time.sleep(_TOLD_SECONDS)
    return {method: _counters(port) for method, port in ports.items()}


async def _ask(port: int, bodies: Sequence[Body], streams: int) -> Result:
    """Sends requests with `streams` of them in flight at any time."""
    loop = asyncio.get_running_loop()

    async def client(index: int) -> list[tuple[int, Timings]]:
        found: list[tuple[int, Timings]] = []
        for number in range(index, len(bodies), streams):
            body = {"model": "bench", "temperature": 0, "max_tokens": 128, **bodies[number]}
            found.append((number, await stream("127.0.0.1", port, "/v1/chat/completions", body)))
        return found

    start = loop.time()
    groups = await asyncio.gather(*(client(index) for index in range(streams)))
    seconds = loop.time() - start
    timings = dict(pair for group in groups for pair in group)
    return Result(seconds, [timings[number] for number in range(len(bodies))])


def _counters(port: int) -> dict[tuple[str, int], float]:
    """The counters of a stack: (name, position or -1) → value."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return {(name, int(position or -1)): float(value) for name, position, value in _COUNTER.findall(text)}


def report(cases: Mapping[tuple[str, int, str], Case]) -> str:
    """Two tables as Markdown: tokens per second, as medians over the rounds, and statistics of draft tokens."""
    methods = list(dict.fromkeys(method for _, _, method in cases))
    heads = [f"{method} (to itself)" if METHODS[method] else method for method in methods[1:]]
    lines = [_row(["trace", "streams", f"{NONE}: tok/s", *heads]), "|---" * (2 + len(methods)) + "|"]
    for trace, streams in dict.fromkeys((trace, streams) for trace, streams, _ in cases):
        plain = cases[trace, streams, NONE].rates
        cells = [_ratios(cases[trace, streams, method], plain) for method in methods[1:]]
        lines.append(_row([trace, str(streams), f"{statistics.median(plain):.0f}", *cells]))
    lines += ["", _row(["trace", "streams", "method", *_HEADS]), "|---" * (3 + len(_HEADS)) + "|"]
    for (trace, streams, method), case in cases.items():
        if METHODS[method]:
            positions = " ".join(f"{share:.2f}" for share in case.acceptance())
            other = cases[trace, streams, NONE].answers
            same = sum(map(str.__eq__, case.answers, other)) / len(other)
            cells = [f"{case.per_guess:.2f}", f"{case.share:.0%}", positions, f"{same:.1%}"]
            lines.append(_row([trace, str(streams), method, *cells]))
    return "\n".join(lines)


def _ratios(case: Case, plain: Sequence[float]) -> str:
    """Ratio to a stack without speculation and, in parentheses, to the same stack with speculation turned off."""
    found = f"{_median_ratio(case.rates, plain):.2f}"
    return f"{found} ({_median_ratio(case.rates, case.own_plain_rates):.2f})" if case.own_plain_rates else found


def _median_ratio(rates: Sequence[float], others: Sequence[float]) -> float:
    return statistics.median(own / other for own, other in zip(rates, others, strict=True))


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
