"""What plain torch can do: Transformers' model in a compiled greedy decode loop, compared with the engine.

`python -m benchmarks.compiled_loop --shape qwen3-0.6b`: random weights, bfloat16, a static cache, and on a GPU the CUDA
graphs of `torch.compile(mode="reduce-overhead")`. The loop never looks at its tokens, so that the host is always ahead;
the engine delivers each token.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.engine_alone import EngineAlone
from benchmarks.machine import heading
from benchmarks.models import SHAPES, build_config

_WARM_UPS = 4  # steps that compile, record and first replay
_ROUNDS = 3
_CACHE_MULTIPLE = 64  # cache length in positions is a multiple of this, as kernels with masks require
Step = Callable[[Any, torch.Tensor, Any], torch.Tensor]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="tiny-llama")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batches", type=int, nargs="+", default=[1])
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--tuned", action="store_true", help="torch tries kernels, its own for single rows among them")
    arguments = parser.parse_args()
    folder = Path(".cache/configurations") / arguments.shape
    build_config(arguments.shape, folder)
    if arguments.tuned:
        from torch._inductor import config

        config.coordinate_descent_tuning = True
    print(heading())
    theirs = loop_seconds(folder, arguments.device, arguments.batches, arguments.context, arguments.steps)
    free()
    ours = engine_seconds(folder, arguments.device, arguments.batches, arguments.context, arguments.steps)
    print(f"`{arguments.shape}` on {arguments.device}, {arguments.context} tokens before; {skipped_graphs()}.\n")
    print("| shape | batch | compiled loop ms | Quire ms | ratio |\n|---|---|---|---|---|")
    for batch, peer, mine in zip(arguments.batches, theirs, ours, strict=True):
        print(f"| {arguments.shape} | {batch} | {peer * 1e3:.2f} | {mine * 1e3:.2f} | {peer / mine:.2f} |", flush=True)


def loop_seconds(folder: Path, device: str, batches: list[int], context: int, steps: int) -> list[float]:
    """Duration of the compiled loop's step at each batch size."""
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device(device):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.bfloat16).eval()
    with torch.no_grad():
        return [_loop_seconds(model, device, batch, context, steps) for batch in batches]


def _loop_seconds(model: Any, device: str, batch: int, context: int, steps: int) -> float:
    from transformers import StaticCache

    torch.compiler.reset()  # else the shapes of the next batch are compiled as dynamic ones
    positions = context + _WARM_UPS + _ROUNDS * steps
    cache = StaticCache(model.config, max_cache_len=-(-positions // _CACHE_MULTIPLE) * _CACHE_MULTIPLE)
    prompt = torch.randint(256, (batch, context), device=device)
    token = _next_token(model, prompt, cache)  # not compiled, because it initializes the cache
    step: Step = torch.compile(_next_token, fullgraph=True, mode="reduce-overhead" if device == "cuda" else "default")
    times = []
    for count in (_WARM_UPS, *[steps] * _ROUNDS):
        start = _now(device)
        for _ in range(count):
            token = step(model, token, cache).clone()  # a graph's output is overwritten by its next replay
        times.append((_now(device) - start) / count)
    return statistics.median(times[1:])


def _next_token(model: Any, tokens: torch.Tensor, cache: Any) -> torch.Tensor:
    logits: torch.Tensor = model(tokens, past_key_values=cache, logits_to_keep=1).logits
    return logits[:, -1].argmax(-1, keepdim=True)


def _now(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def free() -> None:
    """Frees GPU memory of an earlier model and resets its peak, because the engine's KV cache takes what is left."""
    torch.compiler.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def skipped_graphs() -> str:
    """Says whether torch used CUDA graphs, which it skips silently."""
    from torch._dynamo.utils import counters

    count = counters["inductor"]["cudagraph_skips"]
    return f"torch went without a CUDA graph {count} times" if count else "torch skipped no CUDA graph"


def engine_seconds(folder: Path, device: str, batches: list[int], context: int, steps: int) -> list[float]:
    """Duration of the engine's decode step at each batch size."""
    with EngineAlone(
        str(folder), load_format="dummy", device=device, max_model_len=context + 16 * steps,
        enable_prefix_caching=False,
    ) as engine:  # fmt: skip
        engine.decode_seconds(max(batches), context, steps)
        return [engine.decode_seconds(batch, context, steps) for batch in batches]


if __name__ == "__main__":
    main()
