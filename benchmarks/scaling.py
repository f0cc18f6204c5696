"""What ranks send each other in a step, and how long links take for it: the tables of docs/scaling.md.

    python -m benchmarks.scaling

Nothing is measured here: sizes follow from the models' shapes, times from the links' rates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

BF16 = 2
FP8 = 1 + 4 / 128  # a value, and its part of the scale of 128


@dataclass(frozen=True)
class Model:
    """Of the shape that matters.

    Attributes:
        experts_per_token: that a router chooses of a layer's; 0 for models without.
        expert_layers: layers that have some.
    """

    name: str
    hidden_size: int
    num_layers: int
    experts_per_token: int = 0
    expert_layers: int = 0


@dataclass(frozen=True)
class Link:
    """Bytes a second that one GPU sends, in one direction, at best."""

    name: str
    rate: float


@dataclass(frozen=True)
class Traffic:
    """What one rank sends for one layer, or at one boundary between stages, in one step."""

    what: str
    num_bytes: float
    times: int  # a step

    def seconds(self, link: Link) -> float:
        """Of all of them, where nothing hides them and no message costs anything of its own."""
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
    """Bytes that each rank sends for a sum over all, by a ring: its share to everybody, twice around."""
    return 2 * (ranks - 1) / ranks * num_bytes


def tensor_parallel(model: Model, ranks: int, tokens: int, layers: int) -> Traffic:
    """Two sums a layer: of what attention's heads and of what the MLP's features bring."""
    num_bytes = 2 * all_reduce(tokens * model.hidden_size * BF16, ranks)
    return Traffic(f"tensor parallel over {ranks}, a layer", num_bytes, layers)


def pipeline_parallel(model: Model, ranks: int, stages: int, tokens: int) -> Traffic:
    """The hidden states, once for each boundary; each of a stage's tensor ranks sends its share to its neighbour."""
    return Traffic(f"pipeline over {stages}, a boundary", tokens * model.hidden_size * BF16 / ranks, stages - 1)


def expert_parallel(model: Model, ranks: int, tokens: int, *, dispatch: float = FP8, combine: float = BF16) -> Traffic:
    """Each token to the ranks of its experts, and what they made of it back; what is one's own stays.

    Args:
        tokens: of one rank.
        dispatch, combine: bytes of a value on its way there and back.
    """
    copies = tokens * model.experts_per_token * (ranks - 1) / ranks
    num_bytes = copies * model.hidden_size * (dispatch + combine)
    return Traffic(f"experts over {ranks}, a layer", num_bytes, model.expert_layers)


def cases(tokens: int) -> Iterator[tuple[str, Sequence[Traffic]]]:
    """The three layouts, with so many tokens in a step: of a worker, and of each rank where every rank has its own."""
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
    """Such as 3.7 MB."""
    for unit, many in (("GB", 1e9), ("MB", 1e6)):
        if num_bytes >= many:
            return f"{num_bytes / many:.3g} {unit}"
    return f"{num_bytes / 1e3:.3g} kB"


def duration(seconds: float) -> str:
    """Such as 31 ms."""
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
    """Our sizes at the rates that DeepEP's README measured, beside the times that it measured."""
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
