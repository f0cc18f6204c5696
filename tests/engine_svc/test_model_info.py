"""What a worker reports about itself after starting."""

from __future__ import annotations

import dataclasses

from engine_svc.model_info import ModelInfo

INFO = ModelInfo(
    served_model_names=("tiny",), model="tiny", architecture="TinyForCausalLM", max_model_len=100, vocab_size=160,
    dtype="float32", device="cpu", block_size=16, num_kv_blocks=25, kv_cache_tokens=400, max_num_seqs=8,
    max_num_batched_tokens=64, eos_token_ids=(), max_logprobs=20, tensor_parallel_size=1, attention_backend="native",
    scheduling_policy="fcfs", fingerprint="f",
)  # fmt: skip


def test_the_first_log_line_says_what_fits() -> None:
    said = INFO.summary()
    assert "KV cache of 400 tokens, room for 4.00 requests of the full 100 tokens at once" in said
    assert "states" not in said


def test_and_what_a_draft_model_takes() -> None:
    assert "draft" not in INFO.summary()
    said = dataclasses.replace(INFO, draft_cache_bytes=3 * 2**20).summary()
    assert said.endswith("; 3.0 MiB of its memory are for the draft model")


def test_and_what_host_memory_keeps() -> None:
    assert "host memory" not in INFO.summary()
    said = dataclasses.replace(INFO, num_host_blocks=12_000).summary()
    assert said.endswith("; host memory has room for 12,000 blocks that it forgets")
    said = dataclasses.replace(INFO, num_host_blocks=12_000, num_host_snapshots=30).summary()
    assert said.endswith("; host memory has room for 12,000 blocks and 30 states that it forgets")


def test_and_what_states_take_and_cost() -> None:
    with_states = dataclasses.replace(INFO, state_bytes=3 * 2**20)
    taken = "; the states of its recurrent layers take 3.0 MiB for 8 sequences"
    assert with_states.summary().endswith(taken)
    said = dataclasses.replace(with_states, num_snapshots=1200).summary()
    assert said.endswith(f"{taken}, and the prefix cache has room for 1,200 more")
