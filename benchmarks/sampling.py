"""Cost of sampling a step, by what the requests ask for: `python -m benchmarks.sampling`.

With `--against TREE`, another checkout of Quire and this one are measured in turns (A B A B), because the speed of a
shared machine drifts: only the ratios count.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

_PROMPT, _OUTPUT = 512, 128  # tokens of each sequence
_REPEATS = 5
_PLAIN = "greedy"


def cases() -> dict[str, dict[str, Any]]:
    """Sampling parameters of a step's rows, by case."""
    bias = tuple((token_id, 1.0) for token_id in range(0, 3000, 10))
    sampled = {"temperature": 1.0, "top_p": 0.95}
    return {
        _PLAIN: {},
        "presence penalty": {"presence_penalty": 0.5},
        "all penalties": {"presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.1},
        "300 biases": {"logit_bias": bias},
        "min tokens": {"min_tokens": 1000},
        "temperature": {"temperature": 1.0},
        "temperature, top-k": {"temperature": 1.0, "top_k": 20},
        "temperature, top-p": sampled,
        "temperature, top-k, top-p": sampled | {"top_k": 20},
        "temperature, min-p": {"temperature": 1.0, "min_p": 0.05},
        "temperature, top-p, presence": sampled | {"presence_penalty": 0.5},
        "5 log-probabilities": {"logprobs": 5},
    }


def measure(rows: int, vocabulary: int, threads: int) -> dict[str, float]:
    """Milliseconds of a step with `rows` rows, by case: the minimum of several, interleaved with the other cases."""
    import torch

    from engine_svc.plan import SamplingPlan
    from engine_svc.sampling.sampler import Sampler
    from quire.sampling import SamplingParameters

    choose = random.Random(0)
    torch.manual_seed(0)
    torch.set_num_threads(threads)
    use: dict[str, Any] = {}
    if "kernels" in inspect.signature(Sampler).parameters:  # not in a tree from before kernels did the sampling
        from engine_svc.native.library import choose_kernels

        use["kernels"] = kernels = choose_kernels("auto", torch.device("cpu"))
        if kernels is not None:
            kernels.set_threads(threads)
    ranks = torch.stack([torch.randperm(vocabulary) for _ in range(rows)])
    logits = -1.5 * (ranks + 1).log()  # the likeliest thousand have most of the mass, as in a language model
    slots, lengths = list(range(rows)), [_PROMPT + _OUTPUT] * rows
    sampled: tuple[Any, ...] = (slots, lengths)
    if "rows" in inspect.signature(Sampler.sample).parameters:  # not in a tree from before drafts were verified
        from engine_svc.sampling.rows import SampledRows

        sampled = (SampledRows(slots, lengths),)
    samplers = {}
    for name, fields in cases().items():
        samplers[name] = Sampler(rows, vocabulary, torch.device("cpu"), **use)
        for slot in slots:
            token_ids = [choose.randrange(vocabulary) for _ in range(lengths[slot])]
            parameters = SamplingParameters(**({"temperature": 0.0} | fields))
            plan = SamplingPlan(parameters, slot, (1, 2) if parameters.min_tokens else ())
            samplers[name].add(slot, plan, token_ids, _PROMPT)
    best = dict.fromkeys(samplers, float("inf"))
    for _ in range(_REPEATS):
        for name, sampler in samplers.items():
            step = logits.clone()
            start = time.perf_counter()
            sampler.sample(step, *sampled)
            best[name] = min(best[name], (time.perf_counter() - start) * 1e3)
    return best


def in_tree(tree: Path, rows: int, vocabulary: int, threads: int) -> dict[str, float]:
    """Runs `measure` in another process, with the code of a checkout."""
    script = str(Path(__file__).resolve())
    environment = os.environ | {"PYTHONPATH": str(tree)}
    sizes = ["--measure", str(rows), "--vocabularies", str(vocabulary), "--threads", str(threads)]
    command = [sys.executable, script, *sizes]
    answer = subprocess.run(command, env=environment, cwd=tree, check=True, capture_output=True)
    figures: dict[str, float] = json.loads(answer.stdout)
    return figures


def report(rows: int, vocabulary: int, threads: int, trees: dict[str, Path], rounds: int) -> None:
    """Prints a table for one batch size and vocabulary."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in trees}
    for _ in range(rounds):
        for name, tree in trees.items():
            found[name].append(in_tree(tree, rows, vocabulary, threads))
    print(f"\n{rows} rows x {vocabulary} tokens, {threads} threads\n")
    print(f"| requests | ms | x {_PLAIN} |" + (" ms before | before / now |" if len(trees) > 1 else ""))
    print("|---|---|---|" + ("---|---|" if len(trees) > 1 else ""))
    for case in cases():
        now = [figures[case] for figures in found["now"]]
        over = statistics.median(figures[case] / figures[_PLAIN] for figures in found["now"])
        line = f"| {case} | {statistics.median(now):.2f} | {over:.2f} |"
        if before := [figures[case] for figures in found.get("before", [])]:
            ratio = statistics.median(one / other for one, other in zip(before, now, strict=True))
            line += f" {statistics.median(before):.2f} | {ratio:.2f} |"
        print(line)


def main() -> None:
    """Prints a table for each vocabulary and batch size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", type=Path, metavar="TREE", help="another checkout, measured in turn with this one")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--vocabularies", type=int, nargs="+", default=[32_000, 152_000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help="of torch's operations")
    parser.add_argument("--measure", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(arguments.measure, arguments.vocabularies[0], arguments.threads)))
        return
    from benchmarks.machine import heading  # here, because the other checkout's `measure` may lack it

    print(heading())
    trees = {"now": Path(__file__).resolve().parents[1]}
    if arguments.against:
        trees["before"] = arguments.against.resolve()
    for vocabulary in arguments.vocabularies:
        for rows in arguments.rows:
            report(rows, vocabulary, arguments.threads, trees, arguments.rounds)


if __name__ == "__main__":
    main()
