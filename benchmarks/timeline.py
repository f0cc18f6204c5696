"""What a GPU does in a step, kernel by kernel, and where it idles: `python -m benchmarks.timeline`.

Torch's profiler records the kernels of some steps in steady state. A gap is the time in which the GPU runs nothing
between the end of one kernel and the start of the next; the longest gaps are named after these two.
"""

from __future__ import annotations

import argparse
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from benchmarks.engine_alone import EngineAlone
from benchmarks.machine import heading
from benchmarks.models import SHAPES, build_config
from quire.options.model_form import QUANTIZATIONS

_STEPS = 8
_LONGEST_NAME = 70
_GAPS = 3  # number of gaps that are shown


class Span(NamedTuple):
    """A kernel or a copy on the GPU; microseconds."""

    name: str
    start: float
    end: float


@dataclass
class Timeline:
    """Spans of some steps, grouped by name; microseconds."""

    busy: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    gaps: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    whole: float = 0.0

    def add(self, spans: Iterable[Span]) -> None:
        """Adds the spans of a run, in any order; overlapping spans each count in full."""
        ordered = sorted(spans, key=lambda span: span.start)
        if not ordered:
            return
        until, last = ordered[0].start, ""
        for span in ordered:
            self.busy[span.name].append(span.end - span.start)
            if span.start > until:
                self.gaps[f"{last} → {span.name}"].append(span.start - until)
            if span.end > until:
                until, last = span.end, span.name
        self.whole += until - ordered[0].start


def spans_of(profiled: profile) -> list[Span]:
    """The spans on the GPU in a profile."""
    return [
        Span(short(event.name), event.time_range.start, event.time_range.end)
        for event in profiled.events()
        if event.device_type == DeviceType.CUDA
    ]


def short(name: str) -> str:
    """A kernel's name without template arguments, short enough for a table cell."""
    name = re.sub(r"^void |<.*|\(.*", "", name) or name
    return name[:_LONGEST_NAME].replace("|", "/")


def report(timeline: Timeline, steps: int, milliseconds: float) -> None:
    """Prints the kernels of a step, sorted by the time that they take, then the gaps.

    Args:
        milliseconds: duration of a step, measured without the profiler.
    """
    idle = sum(map(sum, timeline.gaps.values()))
    print(
        f"`{timeline.whole / steps:.0f} µs a step with the profiler, {milliseconds * 1e3:.0f} without; "
        f"nothing runs for {idle / steps:.0f} µs of it.`\n"
    )
    print("| kernel | a step | µs each | µs a step | share |\n|---|---|---|---|---|")
    for name, times in sorted(timeline.busy.items(), key=lambda item: -sum(item[1])):
        total = sum(times)
        if total > 0.005 * timeline.whole:
            print(
                f"| {name} | {len(times) / steps:.1f} | {total / len(times):.1f} | {total / steps:.1f} | "
                f"{total / timeline.whole:.1%} |"
            )
    for name, times in sorted(timeline.gaps.items(), key=lambda item: -sum(item[1]))[:_GAPS]:
        total = sum(times)
        print(
            f"| gap: {name} | {len(times) / steps:.1f} | {total / len(times):.1f} | {total / steps:.1f} | "
            f"{total / timeline.whole:.1%} |"
        )
    print(flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-0.6b")
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 32])
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--prefill", type=int, nargs="*", default=[8192])
    parser.add_argument("--quantization", choices=QUANTIZATIONS)
    arguments = parser.parse_args()
    folder = Path(".cache/configurations") / arguments.shape
    build_config(arguments.shape, folder)
    longest = max([arguments.context, *arguments.prefill]) + 16 * _STEPS
    print(heading())
    with EngineAlone(
        str(folder), load_format="dummy", device="cuda", quantization=arguments.quantization, max_model_len=longest,
        enable_prefix_caching=False,
    ) as engine:  # fmt: skip
        for batch in arguments.batches:
            seconds = engine.decode_seconds(batch, arguments.context, _STEPS)
            profiled = _profile()
            engine.decode_seconds(batch, arguments.context, _STEPS, profiled)
            print(f"`{arguments.shape}, decode of {batch} at {arguments.context}`\n")
            _tell(profiled, _STEPS, seconds)
        for tokens in arguments.prefill:
            engine.prefill_seconds(tokens)
            seconds = engine.prefill_seconds(tokens)
            with _profile() as profiled:
                engine.prefill_seconds(tokens)
                torch.cuda.synchronize()
            print(f"`{arguments.shape}, prefill of {tokens}`\n")
            _tell(profiled, 1, seconds)


def _profile() -> profile:
    return profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])


def _tell(profiled: profile, steps: int, seconds: float) -> None:
    timeline = Timeline()
    timeline.add(spans_of(profiled))
    report(timeline, steps, seconds * 1e3)


if __name__ == "__main__":
    main()
