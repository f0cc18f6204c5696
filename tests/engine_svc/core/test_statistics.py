"""What the engine counts of its steps and of both cache tiers."""

from __future__ import annotations

from engine_svc.core.engine import Engine, EngineFacts
from engine_svc.plan import CacheSize
from engine_svc.requests.outputs import EngineLoad
from engine_svc.requests.request import GenerationRequest
from quire.sampling import SamplingParameters
from tests.support.engine_options import engine_options
from tests.support.fake_executor import FakeExecutor


def make_engine(num_blocks: int = 64, num_host_blocks: int = 0, budget: int = 8) -> Engine:
    executor = FakeExecutor(block_size=4, verify=True)
    executor.allocate(CacheSize(num_blocks, num_host_blocks))
    facts = EngineFacts(
        num_blocks=num_blocks, num_host_blocks=num_host_blocks, block_size=4, max_model_len=60,
        max_num_batched_tokens=budget,
    )  # fmt: skip
    return Engine(executor, engine_options(max_num_seqs=8), facts)


def add(engine: Engine, key: int, prompt: list[int], max_tokens: int) -> None:
    engine.add(key, GenerationRequest("r", prompt, SamplingParameters(temperature=0.0, max_tokens=max_tokens)))


def run(engine: Engine) -> list[EngineLoad]:
    """Returns the load after each step."""
    loads = []
    while engine.has_work:
        engine.step()
        engine.check()
        loads.append(engine.load())
    return loads


def test_a_prompt_counts_in_the_step_that_completes_it() -> None:
    engine = make_engine()
    for key in range(2):
        add(engine, key, list(range(20)), 3)
        run(engine)
        counters = engine.load().counters
        # The first time in chunks of 8, 8 and 4 tokens; the second time, all but the last block is found in the cache.
        assert counters.computed_tokens == (22, 28)[key]
        assert sum(counters.iteration_tokens.counts) == (3, 6)[key]
        assert counters.iteration_tokens.sum == (23, 46)[key] == counters.prompt_tokens + counters.generation_tokens
        assert sum(counters.model_execute_milliseconds.counts) == (5, 8)[key]


def test_the_host_tier() -> None:
    engine = make_engine(num_blocks=16, num_host_blocks=32)
    prompts = [list(range(start, start + 24)) for start in (0, 100)]
    for key, prompt in enumerate(prompts):
        add(engine, key, prompt, 30)
    loads = run(engine)
    assert loads[-1].counters.preemptions > 0
    assert max(load.swapped_sequences for load in loads) == 1
    assert (loads[-1].swapped_sequences, loads[-1].total_host_blocks) == (0, 32)
    assert loads[-1].used_host_blocks == max(load.used_host_blocks for load in loads) > 0
    before = loads[-1].counters
    assert before.external_cache_hits > 0
    for key, prompt in enumerate(prompts, 2):
        add(engine, key, prompt, 1)
        run(engine)
    after = engine.load().counters
    assert after.prefix_cache_queries - before.prefix_cache_queries == 48
    on_device = after.prefix_cache_hits - before.prefix_cache_hits
    in_host = after.external_cache_hits - before.external_cache_hits
    assert 0 < in_host <= on_device + in_host == 40
    assert after.external_cache_queries - before.external_cache_queries == 48 - on_device


def test_without_a_host_tier() -> None:
    engine = make_engine(num_blocks=16)
    for key, start in enumerate((0, 100)):
        add(engine, key, list(range(start, start + 24)), 30)
    loads = run(engine)
    assert loads[-1].counters.preemptions > 0
    assert {(load.swapped_sequences, load.used_host_blocks, load.total_host_blocks) for load in loads} == {(0, 0, 0)}
    assert (loads[-1].counters.external_cache_queries, loads[-1].counters.external_cache_hits) == (0, 0)


def test_an_abort_leaves_nothing_running() -> None:
    engine = make_engine(budget=200)
    for key in range(12):
        add(engine, key, list(range(key, key + 20)), 30)
    engine.step()
    for key in range(12):
        engine.abort(key)
    load = engine.load()
    assert (load.running_sequences, load.waiting_requests, load.used_kv_blocks, load.busy) == (0, 0, 0, False)
