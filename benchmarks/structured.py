"""Cost of structured output: `python -m benchmarks.structured` prints the contents of benchmarks/results/structured.md.

Measures masks over a synthetic vocabulary of 151,936 tokens, and whole steps of the 0.6B shape (random weights) at 32
streams.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from benchmarks.machine import heading
from benchmarks.models import build_config
from engine_svc.core.engine import Engine, EngineFacts
from engine_svc.executor.base import create_executor
from engine_svc.plan import CacheSize, SamplingPlan, TokenMasks
from engine_svc.requests.request import GenerationRequest
from engine_svc.sampling.stages.base import SlotSequence, StageRows
from engine_svc.sampling.stages.edits import LogitEdits
from engine_svc.sampling.stages.grammar import GrammarMask
from engine_svc.structured.follower import Endings, Follower
from engine_svc.structured.grammars import Grammars
from quire.options.base import build
from quire.options.engine import EngineOptions
from quire.options.model import ModelOptions
from quire.sampling import SamplingParameters
from quire.structured.base import Constraint, ConstraintRequest, Form, mask_words
from quire.structured.guidance import GuidanceBackend
from quire.structured.vocabulary import Vocabulary

VOCABULARY = 151_936
STREAMS = 32
EOS = VOCABULARY - 1
TOKENS = 60
SHAPE = "qwen3-0.6b"
PROMPT = list(range(48))

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"}, "age": {"type": "integer"}, "email": {"type": "string", "format": "email"},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 20}}, "kind": {"enum": ["a", "b", "c"]},
    },
    "required": ["name", "age", "email", "tags", "kind"],
}  # fmt: skip
CASES = {
    "array of any objects": ConstraintRequest(
        Form.JSON_SCHEMA, '{"type": "array", "minItems": 1000, "items": {"type": "object"}}'
    ),
    "array of objects, five properties": ConstraintRequest(
        Form.JSON_SCHEMA, json.dumps({"type": "array", "minItems": 1000, "items": PERSON})
    ),
    "addresses": ConstraintRequest(Form.REGEX, r"([a-z]{1,12}@[a-z]{1,12}\.(com|org), )*"),
    "a thousand addresses, counted": ConstraintRequest(Form.REGEX, r"([a-z]{1,12}@[a-z]{1,12}\.(com|org), ){1000}"),
}


def synthetic_vocabulary() -> Vocabulary:
    """Bytes, random words with and without a leading space, JSON punctuation and digits, Han characters."""
    choose = random.Random(0)
    found = {bytes([byte]): None for byte in range(256)}
    while len(found) < EOS:
        size = choose.choice((2, 3, 3, 4, 4, 5, 6, 7, 8, 10, 12))
        kind = choose.random()
        if kind < 0.1:
            token = bytes(choose.choices(b'{}[]",: \n\t0123456789.-_\\', k=min(size, 4)))
        elif kind < 0.2:
            token = "".join(chr(choose.randrange(0x4E00, 0x9FFF)) for _ in range(max(1, size // 3))).encode()
        else:
            token = bytes(choose.choices(b"etaoinshrdlucmfwypvbgkjqxz", k=size))
            token = b" " + token if kind < 0.6 else token.capitalize() if kind < 0.7 else token
        found[token] = None
    return Vocabulary((*found, b"<end>"), frozenset([EOS]), (EOS,))


@dataclass(frozen=True)
class Walk:
    """CPU seconds of each step, for all streams together."""

    masks: list[float]
    appends: list[float]


def walk(followers: list[Follower], choose: random.Random) -> Walk:
    """Follows grammars with tokens drawn uniformly from those allowed."""
    rows = [np.empty(mask_words(VOCABULARY), np.int32) for _ in followers]
    found = Walk([], [])
    for _ in range(TOKENS):
        start = time.process_time()
        for follower, row in zip(followers, rows, strict=True):
            follower.fill(row)
            row.tobytes()
        found.masks.append(time.process_time() - start)
        bits = [np.unpackbits(row.view(np.uint8), bitorder="little") for row in rows]
        token_ids = [int(choose.choice(np.flatnonzero(each))) for each in bits]
        start = time.process_time()
        for follower, token_id in zip(followers, token_ids, strict=True):
            follower.append([token_id])
        found.appends.append(time.process_time() - start)
    return found


def print_masks(vocabulary: Vocabulary) -> None:
    """Prints the cost of grammars, their masks and their tokens."""
    start = time.process_time()
    backend = GuidanceBackend(vocabulary)
    backend.compile(CASES["addresses"])
    print(f"Tables of the vocabulary: {time.process_time() - start:.2f} s, once for each engine.\n")
    print(f"| grammar | read, ms | for a sequence, µs | {STREAMS} masks, ms mean | p90 | most | {STREAMS} tokens, ms |")
    print("|---|---|---|---|---|---|---|")
    for name, request in CASES.items():
        compiled = backend.compile(request)
        start = time.process_time()
        grammar = backend.read(compiled)
        read = time.process_time() - start
        start = time.process_time()
        endings = Endings(frozenset(), frozenset([EOS]))
        followers = [Follower(grammar, endings) for _ in range(STREAMS)]
        copied = (time.process_time() - start) / STREAMS
        found = walk(followers, random.Random(1))
        masks = sorted(1e3 * each for each in found.masks)
        print(
            f"| {name} | {read * 1e3:.1f} | {copied * 1e6:.0f} | {statistics.mean(masks):.2f} | "
            f"{masks[int(len(masks) * 0.9)]:.2f} | {masks[-1]:.2f} | {1e3 * statistics.mean(found.appends):.2f} |"
        )


def print_stage() -> None:
    """Prints the cost of applying the masks of a step."""
    stage = GrammarMask(STREAMS, VOCABULARY, torch.device("cpu"))
    for slot in range(STREAMS):
        stage.add(slot, SlotSequence(SamplingPlan(follows_grammar=True), [], 0))
    bits = np.random.default_rng(0).integers(0, 2**32, (STREAMS, mask_words(VOCABULARY)), np.uint32).tobytes()
    rows = list(range(STREAMS))
    step = StageRows(rows, rows, [9] * STREAMS, TokenMasks(rows, bits))
    times = []
    for _ in range(30):
        logits = torch.randn(STREAMS, VOCABULARY)
        start = time.process_time()
        stage.apply(LogitEdits(logits), step)
        times.append(time.process_time() - start)
    print(f"\n{STREAMS} masks applied to their logits on this processor: {1e3 * statistics.median(times):.1f} ms.")


class Steps:
    """An engine with the 0.6B shape, whose steps are timed."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._keys = iter(range(10**9))
        self._woken = threading.Event()
        engine.wake_by(self._woken.set)

    def add(self, constraint: Constraint | None, max_tokens: int) -> int:
        key = next(self._keys)
        sampling = SamplingParameters(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        self.engine.add(key, GenerationRequest(f"r{key}", PROMPT, sampling, constraint=constraint))
        return key

    def first_token(self, constraint: Constraint | None) -> float:
        """Seconds to the first token of a request that runs alone."""
        start = time.perf_counter()
        self.add(constraint, 1)
        self._finish()
        return time.perf_counter() - start

    def decode(self, constraint: Constraint | None, steps: int) -> float:
        """Median CPU seconds, which other processes do not affect, of a step in which all streams decode."""
        keys = [self.add(constraint, 10 * steps) for _ in range(STREAMS)]
        while self.engine.load().running_sequences < STREAMS or self.engine.load().waiting_prefill_tokens:
            self.engine.step()
        times = []
        for _ in range(steps):
            start = time.process_time()
            self.engine.step()
            times.append(time.process_time() - start)
        for key in keys:
            self.engine.abort(key)
        self._finish()
        return statistics.median(times)

    def _finish(self) -> None:
        while True:
            while self.engine.has_work:
                self.engine.step()
            if not self.engine.num_waiting:
                return
            self._woken.wait(1.0)
            self._woken.clear()


def make_steps(vocabulary: Vocabulary, folder: Path, cpu_threads: int) -> Steps:
    """An engine with the synthetic vocabulary and random weights."""
    build_config(SHAPE, folder)
    config = json.loads((folder / "config.json").read_text()) | {"vocab_size": VOCABULARY}
    (folder / "config.json").write_text(json.dumps(config))
    options = build(EngineOptions, {
        "load_format": "dummy", "max_num_seqs": STREAMS, "kv_cache_memory_bytes": 2**29, "max_model_len": 4096,
        "enable_prefix_caching": True, "use_tqdm_on_load": False, "cpu_threads": cpu_threads,
    })  # fmt: skip
    executor = create_executor(options.parallel)
    spec = executor.load(ModelOptions(model=str(folder)), options)
    num_blocks = spec.available_bytes // spec.bytes_per_block
    executor.allocate(CacheSize(num_blocks))
    facts = EngineFacts(
        num_blocks=num_blocks, block_size=spec.block_size, windows=spec.windows, max_model_len=4096,
        max_num_batched_tokens=spec.max_num_batched_tokens, eos_token_ids=frozenset([EOS]),
    )  # fmt: skip
    return Steps(Engine(executor, options, facts, grammars=Grammars(VOCABULARY, lambda: vocabulary)))


def new_constraints(backend: GuidanceBackend) -> Iterator[Constraint]:
    """Constraints whose schemas have not been used before."""
    for number in range(10**6):
        schema = PERSON | {"title": f"person {number}"}
        yield Constraint.of("guidance", backend.compile(ConstraintRequest(Form.JSON_SCHEMA, json.dumps(schema))))


def print_steps(vocabulary: Vocabulary, steps: int, rounds: int, cpu_threads: int) -> None:
    """Prints the cost of whole steps and first tokens, with and without a constraint, measured in turns."""
    backend = GuidanceBackend(vocabulary)
    known = Constraint.of("guidance", backend.compile(CASES["array of objects, five properties"]))
    fresh = new_constraints(backend)
    with tempfile.TemporaryDirectory() as folder:
        engine = make_steps(vocabulary, Path(folder), cpu_threads)
        for constraint in (None, known, next(fresh)):
            engine.first_token(constraint)
        pairs = [(engine.decode(None, steps), engine.decode(known, steps)) for _ in range(rounds)]
        firsts = [[engine.first_token(each) for each in (None, known, next(fresh))] for _ in range(4 * rounds)]
        engine.engine.close()
    free, bound = (statistics.median(times) for times in zip(*pairs, strict=True))
    cost = statistics.median(after / before - 1 for before, after in pairs)
    print(
        f"\nA step of {SHAPE} with {VOCABULARY:,} tokens at {STREAMS} streams: {1e3 * free:.1f} ms of the processor "
        f"free, {1e3 * bound:.1f} ms constrained; {100 * cost:+.1f} % (median of {rounds} pairs of {steps} steps)."
    )
    none, old, new = (1e3 * min(times) for times in zip(*firsts, strict=True))
    print(f"First token: {none:.1f} ms free, {old:.1f} ms of a known grammar, {new:.1f} ms of a new one (the soonest).")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cpu-threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.cpu_threads)
    print(heading())
    print(f"{arguments.cpu_threads} threads, torch {torch.__version__}.\n")
    vocabulary = synthetic_vocabulary()
    print_masks(vocabulary)
    print_stage()
    print_steps(vocabulary, arguments.steps, arguments.rounds, arguments.cpu_threads)


if __name__ == "__main__":
    main()
