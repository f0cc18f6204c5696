"""What ranks send each other in a step, and how long it takes over different links: the tables of docs/scaling.md.

    python -m benchmarks.scaling

Nothing is measured: sizes follow from the models' shapes, and times from the links' rates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

BF16 = 2
FP8 = 1 + 4 / 128  # bytes of a value, and its share of a scale for 128 values


@dataclass(frozen=True)
class Model:
    """The parts of a model's shape that matter here.

    Attributes:
        experts_per_token: experts that the router of a layer chooses; 0 for models without experts.
        expert_layers: number of layers with experts.
    """

    name: str
    hidden_size: int
    num_layers: int
    experts_per_token: int = 0
    expert_layers: int = 0


@dataclass(frozen=True)
class Link:
    """A link, and the peak rate in bytes per second at which one GPU sends over it, in one direction."""

    name: str
    rate: float


@dataclass(frozen=True)
class Traffic:
    """What one rank sends for one layer, or at one boundary between stages, in one step."""

    what: str
    num_bytes: float
    times: int  # per step

    def seconds(self, link: Link) -> float:
        """Time per step, without overlap with computation and without per-message overhead."""
        return self.num_bytes * self.times / link.rate


LLAMA_70B = Model("Llama-3.1-70B", 8192, 80)
LLAMA_405B = Model("Llama-3.1-405B", 16384, 126)
DEEPSEEK_V3 = Model("DeepSeek-V3", 7168, 61, experts_per_token=8, expert_layers=58)

LINKS = (
    Link("NVLink 4, 450 GB/s", 450e9),
    Link("InfiniBand NDR, 50 GB/s", 50e9),
    Link("100 Gb Ethernet, 12.5 GB/s", 12.5e9),
)


def all_reduce(num_bytes: float, ranks: int) -> float:
    """Bytes that each rank sends in a ring all-reduce, in which every share goes around twice."""
    return 2 * (ranks - 1) / ranks * num_bytes


def tensor_parallel(model: Model, ranks: int, tokens: int, layers: int) -> Traffic:
    """Two all-reduces per layer: one after attention, one after the MLP."""
    num_bytes = 2 * all_reduce(tokens * model.hidden_size * BF16, ranks)
    return Traffic(f"tensor parallel over {ranks}, a layer", num_bytes, layers)


def pipeline_parallel(model: Model, ranks: int, stages: int, tokens: int) -> Traffic:
    """Hidden states, once per stage boundary; each tensor rank of a stage sends its share to its neighbor."""
    return Traffic(f"pipeline over {stages}, a boundary", tokens * model.hidden_size * BF16 / ranks, stages - 1)


def expert_parallel(model: Model, ranks: int, tokens: int, *, dispatch: float = FP8, combine: float = BF16) -> Traffic:
    """Tokens are sent to the ranks of their experts, and results back, except those that stay on their own rank.

    Args:
        tokens: tokens of one rank.
        dispatch, combine: bytes per value on the way there and back.
    """
    copies = tokens * model.experts_per_token * (ranks - 1) / ranks
    num_bytes = copies * model.hidden_size * (dispatch + combine)
    return Traffic(f"experts over {ranks}, a layer", num_bytes, model.expert_layers)


def cases(tokens: int) -> Iterator[tuple[str, Sequence[Traffic]]]:
    """The three layouts. `tokens` is per step: of a worker, or of each rank if every rank has its own tokens."""
    yield f"{LLAMA_70B.name}, tp 8", [tensor_parallel(LLAMA_70B, 8, tokens, 80)]
    yield (
        f"{LLAMA_405B.name}, tp 8 x pp 2",
        [
            tensor_parallel(LLAMA_405B, 8, tokens, 126 // 2),
            pipeline_parallel(LLAMA_405B, 8, 2, tokens),
        ],
    )
    yield f"{DEEPSEEK_V3.name}, ep 64", [expert_parallel(DEEPSEEK_V3, 64, tokens)]


def size(num_bytes: float) -> str:
    """Formats a size, for example as 3.7 MB."""
    for unit, many in (("GB", 1e9), ("MB", 1e6)):
        if num_bytes >= many:
            return f"{num_bytes / many:.3g} {unit}"
    return f"{num_bytes / 1e3:.3g} kB"


def duration(seconds: float) -> str:
    """Formats a duration, for example as 31 ms."""
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{seconds * 1e3:,.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"


def table(tokens: int) -> str:
    """Markdown: a row for each kind of traffic of each layout."""
    head = f"| {tokens:,} tokens | traffic | a rank sends | times a step | " + " | ".join(link.name for link in LINKS)
    lines = [f"{head} |", "|---" * (4 + len(LINKS)) + "|"]
    for name, traffic in cases(tokens):
        for each in traffic:
            times = " | ".join(duration(each.seconds(link)) for link in LINKS)
            lines.append(f"| {name} | {each.what} | {size(each.num_bytes)} | {each.times} | {times} |")
    return "\n".join(lines)


def check_table() -> str:
    """Times computed from our sizes and the rates measured in DeepEP's README, next to the times measured there."""
    dispatch = expert_parallel(DEEPSEEK_V3, 64, 128, combine=0).num_bytes * 64 / 63
    combine = expert_parallel(DEEPSEEK_V3, 64, 128, dispatch=0).num_bytes * 64 / 63
    rows = (("dispatch, FP8", dispatch, 43e9, 173e-6), ("combine, BF16", combine, 46e9, 314e-6))
    lines = ["| ep 64, 128 tokens a rank | bytes | at the measured rate | measured |", "|---|---|---|---|"]
    lines += [
        f"| {name} | {size(num_bytes)} | {duration(num_bytes / rate)} at {rate / 1e9:.0f} GB/s | {duration(seconds)} |"
        for name, num_bytes, rate, seconds in rows
    ]
    return "\n".join(lines)


def main() -> None:
    """Prints the tables."""
    for tokens in (64, 2048):
        print(f"{table(tokens)}\n")
    print(check_table())


if __name__ == "__main__":
    main()
