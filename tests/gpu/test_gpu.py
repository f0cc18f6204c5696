"""The same checks on a GPU: `make test ARGS="-m gpu"` where there is one, `make test-emulated-gpu` elsewhere."""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file

from engine_svc.adapters.adapter import read_adapter
from engine_svc.attention.base import AttentionShape
from engine_svc.attention.registry import create_backend
from engine_svc.executor.base import create_executor
from engine_svc.kv_cache.sizing import size_kv_cache
from engine_svc.ops.grids import E2M1, E4M3, E5M2, INT4, INT8
from engine_svc.ops.triton import InvariantTritonOps, TritonOps
from engine_svc.ops.weights import Grid
from engine_svc.recurrence.triton import TritonRecurrence
from engine_svc.requests.request import GenerationRequest
from engine_svc.runner.graphs import CudaCapture
from quire.options.model import ModelOptions
from quire.prompt_embeds import PromptEmbeds
from tests.conformance.test_attention import BATCHES, BLOCK_SIZE, check_backend
from tests.conformance.test_batch_invariance import OPERATIONS, SHAPES, check_attention, check_rows, options_of
from tests.conformance.test_chosen import BATCHES as CHOSEN_BATCHES
from tests.conformance.test_chosen import check_choice, chosen_attention
from tests.conformance.test_expansion import BATCHES as EXPANDED_BATCHES
from tests.conformance.test_expansion import Dims, check_expansion, latent_backend, short_prompts
from tests.conformance.test_recurrence import check_formula
from tests.engine_svc.kernels.test_coded import coded
from tests.engine_svc.kernels.test_sampling import check_draws
from tests.engine_svc.models.test_batch_invariance import TYPES
from tests.engine_svc.models.test_batch_invariance import check as check_requests
from tests.support.adapter_folders import low_rank, write_adapter
from tests.support.deepseek_v4 import make_deepseek_v4
from tests.support.engine_options import engine_options
from tests.support.exact_answers import check_answers, check_answers_of
from tests.support.multi_token import make_multi_token
from tests.support.rank_drafter import RankDrafter
from tests.support.recurrence import Operation, convolution, delta_rule, heads_scan
from tests.support.replaying_drafter import ReplayingDrafter
from tests.support.run_engine import GREEDY, random_prompts, run, run_requests, running_engine, tokens
from tests.support.shared_folder import sharing_engine
from tests.support.step3 import add_step3_multi_token_layer, make_step3
from tests.support.tiny_models import VOCAB_SIZE, check_greedy, make_model
from tests.support.vision_models import make_vision_model, random_frames, random_image, reference_generate
from tests.support.vision_models.prompts import request_of
from tests.support.vision_models.pruning import pruned_by_hand
from tests.support.whisper_models import make_whisper_model, spectrogram, whisper_reference, whisper_request

DRAWN: list[dict[str, Any]] = [
    {}, {"temperature": 0.7}, {"temperature": 1.0, "top_k": 3}, {"temperature": 1.0, "top_p": 0.5},
    {"temperature": 1.0, "min_p": 0.2, "top_k": 900}, {"temperature": 1.0, "presence_penalty": 1.0},
]  # fmt: skip

triton = pytest.importorskip("triton")
__all__ = ["short_prompts"]

# An emulated GPU is slow and therefore computes fewer tokens of fewer sequences; it has no bfloat16, as numpy has none.
IS_EMULATED = os.environ.get("TRITON_INTERPRET") == "1"
HALF = torch.float16 if IS_EMULATED else torch.bfloat16
DTYPES = list({torch.float32: None, HALF: None, torch.float16: None})
LENGTHS = (12, 300) if IS_EMULATED else (12, 700)
NUM_TOKENS = 5 if IS_EMULATED else 64
SAMPLING = replace(GREEDY, max_tokens=NUM_TOKENS)
LIMITS: dict[str, Any] = {"device": "cuda", "max_num_batched_tokens": 33} | ({"max_num_seqs": 4} if IS_EMULATED else {})

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
TOO_MUCH = pytest.mark.skipif(IS_EMULATED, reason="in Triton's interpreter it takes more than five minutes")


@contextmanager
def no_waits() -> Iterator[None]:
    """Fails if anything makes the host wait for the device in the middle of a step."""
    with warnings.catch_warnings(action="ignore"):  # torch warns that it does not find all waits
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [None, 12, 300])
@pytest.mark.parametrize("batch", [*BATCHES, "long"])
def test_attention(dtype: torch.dtype, window: int | None, batch: str) -> None:
    shape = AttentionShape(8, 2, 64, BLOCK_SIZE, dtype, torch.device("cuda"))
    lengths = BATCHES.get(batch, [(255, 1), (300, 20), (0, 130), (256, 1)])
    check_backend(create_backend("triton", shape, None), lengths, window)


@pytest.mark.parametrize("batch_invariant", [False, True])
@pytest.mark.parametrize("dtype", [HALF, torch.float16])
@pytest.mark.parametrize("window", [None, 100])
def test_tiles_in_one_block(
    monkeypatch: pytest.MonkeyPatch, window: int | None, dtype: torch.dtype, batch_invariant: bool
) -> None:
    """Covers tiles within one block, which a GPU copies by itself where it can."""
    monkeypatch.setattr("tests.conformance.test_attention.BLOCK_SIZE", 64)
    shape = AttentionShape(8, 2, 128, 64, dtype, torch.device("cuda"), batch_invariant=batch_invariant)
    lengths = [(900, 1), (63, 1), (0, 1), (130, 70), (190, 5), (0, 700), (500, 1)]
    check_backend(create_backend("triton", shape, None), lengths, window)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [None, 300])
def test_ends_of_prompts(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, window: int | None) -> None:
    """Covers prompts whose keys are split among programs."""
    for name, value in (("_LONG_PART", 128), ("_LONG_CONTEXT", 64), ("multiprocessors", lambda _: 132)):
        monkeypatch.setattr(f"engine_svc.attention.triton.{name}", value)
    shape = AttentionShape(8, 2, 64, BLOCK_SIZE, dtype, torch.device("cuda"))
    check_backend(create_backend("triton", shape, None), [(300, 20), (255, 1), (600, 40), (20, 30)], window)


@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(1, 1, 16), (6, 3, 80), (32, 8, 128), (16, 1, 256)])
def test_shapes(heads: int, kv_heads: int, dim: int) -> None:
    shape = AttentionShape(heads, kv_heads, dim, BLOCK_SIZE, HALF, torch.device("cuda"))
    check_backend(create_backend("triton", shape, None), BATCHES["mixed"], None)


@pytest.mark.parametrize("special", ["softcap", "sinks", "chunked", "slopes"])
def test_what_scores_are_made_of(special: str) -> None:
    shape = AttentionShape(8, 2, 64, BLOCK_SIZE, HALF, torch.device("cuda"))
    check_backend(create_backend("triton", shape, None), BATCHES["mixed"], 12, special)


@pytest.mark.usefixtures("short_prompts")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dims", [Dims(24, 24, 8, 16), Dims(64, 32, 16, 32), Dims(512, 128, 64, 128)], ids=str)
def test_expanded_prompts(dims: Dims, dtype: torch.dtype) -> None:
    for batch in ("chunks", "mixed"):
        check_expansion(latent_backend(dims, dtype, "cuda"), dims, EXPANDED_BATCHES[batch])


@pytest.mark.usefixtures("short_prompts")
@pytest.mark.parametrize("family", ["deepseek-v2", "deepseek-v3"])
def test_engine_with_expanded_prompts(tmp_path: Path, family: str) -> None:
    """The longest prompt is in pieces of 33, beside sequences that decode, and the last ones take two rounds."""
    folder = make_model(tmp_path / family, family)
    prompts = random_prompts(1, 17, 180)
    with running_engine(folder, enforce_eager=True, **LIMITS) as engine, no_waits():
        found = [tokens(run(engine, prompts, SAMPLING)) for _ in range(2)]
    for answers in found:
        check_greedy(folder, prompts, answers, NUM_TOKENS)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("vector", "key"), [(40, 24), (576, 128)])
def test_chosen_positions(vector: int, key: int, dtype: torch.dtype) -> None:
    for batch in CHOSEN_BATCHES.values():
        check_choice(chosen_attention("triton", dtype, vector, key, "cuda"), batch)


@pytest.mark.parametrize("family", ["axk2", "deepseek-v3.2", "glm-5", "hy-v4"])
@pytest.mark.parametrize("eager", [False, True])
def test_engine_that_chooses_positions(tmp_path: Path, family: str, eager: bool) -> None:
    """Answers begin before and beyond the length from which on positions are chosen; graphs are for the former."""
    sharing = {"num_hidden_layers": 4, "indexer_types": ["full", "shared", "full", "shared"]}
    folder = make_model(tmp_path / family, family, index_topk=32, **sharing if family in ("glm-5", "hy-v4") else {})
    prompts, sampling = random_prompts(3, 29, 90), replace(SAMPLING, logprobs=4)
    with running_engine(folder, enforce_eager=eager, **LIMITS) as engine, no_waits():
        found = run(engine, prompts, sampling)
    check_answers(folder, prompts, found, NUM_TOKENS)


@pytest.mark.parametrize(
    "family",
    [
        "llama", "mistral", "qwen3", "qwen2-moe", "qwen3-moe", "gemma2", "gemma3", "gemma3n", "gemma4-moe",
        "gemma4-small", "mimo",
        "olmo2", "phi3-partial", "gpt-oss", "deepseek-v2", "deepseek-v3", "llama4", "phimoe", "granite-moe-shared",
        "bloom", "falcon-rw", "mpt-clipped",
        "nemotron-h", "nemotron-h-latent", "mamba2", "olmo-hybrid", "apertus", "laguna", "longcat",
    ],
)  # fmt: skip
@pytest.mark.parametrize("eager", [False, True])
def test_engine(tmp_path: Path, family: str, eager: bool) -> None:
    folder = make_model(tmp_path / family, family)
    prompts = random_prompts(1, 17, 90)
    with running_engine(folder, enforce_eager=eager, **LIMITS) as engine, no_waits():
        found = tokens(run(engine, prompts, SAMPLING))
    check_greedy(folder, prompts, found, NUM_TOKENS)


# Request options and engine options whose data is copied to the device and back in each step.
ASKED: list[dict[str, Any]] = [
    {}, {"temperature": 0.7, "seed": 1}, {"temperature": 1.0, "top_k": 3, "logprobs": 2},
    {"temperature": 1.0, "top_p": 0.5, "presence_penalty": 1.0, "prompt_logprobs": 1},
    {"temperature": 1.0, "min_p": 0.2, "top_k": 90, "repetition_penalty": 1.2},
    {"logit_bias": ((5, 1.0),), "min_tokens": 2, "stop_token_ids": [3]}, {"n": 2, "temperature": 1.0, "seed": 3},
    {"allowed_token_ids": [4, 5, 6, 9]},
]  # fmt: skip
HAD: dict[str, dict[str, Any]] = {
    "sampling": {},
    "preemption": {"num_blocks": 6, "block_size": 16, "enable_prefix_caching": False},
    "host tier": {"num_blocks": 6, "block_size": 16, "num_host_blocks": 20},
    "cache of 8 bits": {"kv_cache_dtype": "fp8_e5m2"},
    "int8": {"quantization": "int8"},
    "int4": {"quantization": "int4"},
    "fp8": {"quantization": "fp8"},
    "n-grams": {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 3}},
    "batch-invariant": {"batch_invariant": True},
}


@pytest.mark.parametrize("had", HAD)
@pytest.mark.parametrize("eager", [False, True])
def test_no_step_waits_for_the_device(tmp_path: Path, had: str, eager: bool) -> None:
    """Runs twice, so that prompts are found in the cache; engine options do not change greedy output."""
    folder = make_model(tmp_path / "llama", "llama", num_hidden_layers=2)
    prompts = random_prompts(1, 17, 40, 3, 5, 7, 9, 11) if had == "sampling" else random_prompts(30, 31, 32)
    asked = [
        GenerationRequest("r", prompt, replace(SAMPLING, **(ASKED[index] if had == "sampling" else {})))
        for index, prompt in enumerate(prompts)
    ]
    with running_engine(folder, enforce_eager=eager, **LIMITS, **HAD[had]) as engine, no_waits():
        found = [run_requests(engine, asked) for _ in range(2)]
    assert all(output.finish_reason for outputs in found for choices in outputs for output in choices)
    if had in ("preemption", "host tier", "n-grams", "batch-invariant"):
        check_greedy(folder, prompts, tokens(found[0]), NUM_TOKENS)
        check_greedy(folder, prompts, tokens(found[1]), NUM_TOKENS)


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("family", ["bamba", "qwen3-next"])
def test_prompts_begin_with_saved_states(tmp_path: Path, family: str, eager: bool) -> None:
    """States are copied on the device, in order with steps that are replayed as graphs."""
    folder, prompts = make_model(tmp_path / family, family), random_prompts(17, 90)
    options = LIMITS | {"block_size": 16, "mamba_block_size": 16}
    with running_engine(folder, enforce_eager=eager, **options) as engine, no_waits():
        found = [tokens(run(engine, prompts, SAMPLING)) for _ in range(2)]
        assert engine.load().counters.prefix_cache_hits == 16 + 80
    for each in found:
        check_greedy(folder, prompts, each, NUM_TOKENS)


@pytest.mark.parametrize("family", ["qwen3-next", "gemma3"])
def test_states_and_windows_come_back_from_host_memory(tmp_path: Path, family: str) -> None:
    """Each prompt displaces what the device keeps of the other one."""
    folder, prompts = make_model(tmp_path / family, family), random_prompts(60, 57)
    options = LIMITS | {"block_size": 16, "max_model_len": 80, "enforce_eager": True}
    if family == "qwen3-next":
        options |= {"mamba_block_size": 16, "num_blocks": 6, "num_snapshots": 1, "num_host_snapshots": 20}
    else:
        options |= {"num_blocks": 10}
    with running_engine(folder, num_host_blocks=60, **options) as engine, no_waits():
        found = [tokens(run(engine, [prompt], SAMPLING)) for prompt in prompts * 2]
        assert engine.load().counters.external_cache_hits >= 48
    check_greedy(folder, prompts * 2, [each for outputs in found for each in outputs], NUM_TOKENS)


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("family", ["bamba", "qwen3-next", "kimi-linear", "mamba", "recurrent-gemma"])
def test_states_go_back_to_the_last_right_token(tmp_path: Path, family: str, eager: bool) -> None:
    """Drafts of which half are right, verified by graphs and without, where states are saved as well."""
    folder, prompts = make_model(tmp_path / family, family), random_prompts(9, 30, 23)
    asked = [GenerationRequest(str(index), prompt, SAMPLING) for index, prompt in enumerate(prompts)]
    options = LIMITS | {"block_size": 16, "mamba_block_size": 16}
    drafter = ReplayingDrafter(VOCAB_SIZE, most=3, right=0.5)
    options |= {"enforce_eager": eager, "speculative_config": {"method": "ngram", "num_speculative_tokens": 3}}
    with running_engine(folder, drafter=drafter, **options) as engine, no_waits():
        outputs = run_requests(engine, asked)
        drafter.know(asked, [[choice.token_ids for choice in choices] for choices in outputs])
        found = [tokens(run_requests(engine, asked)) for _ in range(2)]
    check_greedy(folder, prompts, tokens(outputs), NUM_TOKENS)
    for each in found:
        check_greedy(folder, prompts, each, NUM_TOKENS)
    assert drafter.num_drafts > drafter.num_right > 0


@pytest.mark.parametrize("eager", [False, True])
def test_multi_token_prediction_beside_states(tmp_path: Path, eager: bool) -> None:
    folder, prompts = tmp_path, random_prompts(9, 30)
    make_multi_token(folder, "qwen3.5")
    drafter, config = RankDrafter(2), {"method": "mtp", "num_speculative_tokens": 2}
    with running_engine(folder, enforce_eager=eager, drafter=drafter, speculative_config=config, **LIMITS) as engine:
        found = tokens(run(engine, prompts, SAMPLING))
    check_greedy(folder, prompts, found, NUM_TOKENS)
    assert drafter.drafts["all"] > 0


@pytest.mark.parametrize("eager", [False, True])
def test_more_query_heads_in_layers_with_a_window(tmp_path: Path, eager: bool) -> None:
    """Step 3.5, with its layer for multi-token prediction; experts are clipped."""
    model, prompts = make_step3(tmp_path), random_prompts(9, 60)
    add_step3_multi_token_layer(tmp_path, model)
    options = LIMITS | {"enforce_eager": eager, "speculative_config": {"method": "mtp", "num_speculative_tokens": 2}}
    with running_engine(tmp_path, drafter=RankDrafter(2), **options) as engine:
        found = run(engine, prompts, replace(SAMPLING, logprobs=4))
    check_answers_of(model, prompts, found, NUM_TOKENS)


def test_compressed_entries(tmp_path: Path) -> None:
    """DeepSeek V4: prompts and answers with fewer entries than are chosen, and with more; nothing is recorded."""
    model, prompts = make_deepseek_v4(tmp_path), random_prompts(9, 60)
    with running_engine(tmp_path, **LIMITS) as engine, no_waits():
        found = run(engine, prompts, replace(SAMPLING, logprobs=4))
    check_answers_of(model, prompts, found, NUM_TOKENS)


def test_blocks_in_a_shared_folder(tmp_path: Path) -> None:
    """What one engine saves another one loads, and no step waits for the copies."""
    folder, prompts = make_model(tmp_path / "llama", "llama", num_hidden_layers=2), random_prompts(70, 90)
    found = []
    for _ in range(2):
        with sharing_engine(folder, tmp_path / "kv", **LIMITS | {"block_size": 16}) as engine, no_waits():
            found.append(tokens(run(engine, prompts, SAMPLING)))
            hits = engine.load().counters.external_cache_hits
    assert hits == 64 + 80
    assert found[0] == found[1]
    check_greedy(folder, prompts, found[1], NUM_TOKENS)


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("quantization", [None, "int8", "int4", "fp8"])
@pytest.mark.parametrize("family", ["llama", "qwen3-moe"])
def test_weights_in_host_memory(tmp_path: Path, family: str, quantization: str | None, eager: bool) -> None:
    """Weights are copied on a stream beside the computing one, and within graphs."""
    folder, prompts = make_model(tmp_path / family, family, num_hidden_layers=8), random_prompts(1, 17, 90)
    found = []
    for host in (0.0, 1 / 2048):
        with running_engine(
            folder, enforce_eager=eager, quantization=quantization, cpu_offload_gb=host, **LIMITS
        ) as engine, no_waits():  # fmt: skip
            found.append(tokens(run(engine, prompts, SAMPLING)))
    assert found[0] == found[1]


@pytest.mark.parametrize("eager", [False, True])
def test_prompt_embeds(tmp_path: Path, eager: bool) -> None:
    """Rows go through pinned memory, and not through graphs, even for a prompt of one row."""
    folder = make_model(tmp_path / "llama", "llama")
    prompts = random_prompts(1, 17, 90)
    weights = load_file(folder / "model.safetensors")["model.embed_tokens.weight"].float()
    requests = [
        GenerationRequest(
            "r", [], SAMPLING, prompt_embeds=PromptEmbeds("float32", 64, weights[prompt].numpy().tobytes())
        )
        for prompt in prompts
    ]
    with running_engine(folder, enforce_eager=eager, **LIMITS) as engine, no_waits():
        found = tokens(run_requests(engine, requests))
    check_greedy(folder, prompts, found, NUM_TOKENS)


@pytest.mark.parametrize("family", ["gemma3", "gemma4", "gemma4_large", "llava", "qwen2_5_vl", "qwen3_vl"])
def test_images(tmp_path: Path, family: str) -> None:
    """Encoded on the device; their tokens have one position, or three, or are added to after the first layers too."""
    folder = make_vision_model(tmp_path, family)
    content = [{"type": "text", "text": "Look:"}, {"type": "image"}, {"type": "image"}, {"type": "text", "text": "?"}]
    messages, images = [{"role": "user", "content": content}], [random_image(60, 40, 1), random_image(30, 70, 2)]
    request = request_of(folder, messages, images, SAMPLING)
    with running_engine(folder, **LIMITS) as engine:
        found = tokens(run_requests(engine, [request, request]))
    assert found == [reference_generate(folder, messages, images, NUM_TOKENS)[1]] * 2


@pytest.mark.parametrize(("family", "pruning_rate"), [("qwen2_5_vl", 0.4), ("qwen3_vl", 0.0)])
def test_videos(tmp_path: Path, family: str, pruning_rate: float) -> None:
    """Frames together, of which some embeddings are left out; and frames with text between them."""
    folder, frames = make_vision_model(tmp_path, family), random_frames(84, 60, 6, 1)
    messages = [{"role": "user", "content": [{"type": "text", "text": "Watch:"}, {"type": "video"}]}]
    request = request_of(folder, messages, [], SAMPLING, videos=[frames], pruning_rate=pruning_rate)
    with running_engine(folder, **LIMITS) as engine:
        found = tokens(run_requests(engine, [request, request]))
    if pruning_rate:
        assert found == [pruned_by_hand(folder, messages, frames, pruning_rate, NUM_TOKENS)] * 2
    else:
        assert found == [reference_generate(folder, messages, [], NUM_TOKENS, videos=[frames])[1]] * 2


@pytest.mark.parametrize("family", ["qwen2_audio", "qwen3_asr"])
def test_audio(tmp_path: Path, family: str) -> None:
    """Encoded on the device, by pieces and whole."""
    pytest.importorskip("av", reason="PyAV writes and reads audio files")
    from tests.support.audio_files import sine
    from tests.support.audio_models import audio_request, make_audio_model
    from tests.support.audio_models import reference_generate as audio_answer

    folder, audios = make_audio_model(tmp_path, family), [sine(1.7), sine(1.1, 900)]
    content = [{"type": "audio"}, {"type": "text", "text": "And then:"}, {"type": "audio"}]
    messages = [{"role": "user", "content": content}]
    request = audio_request(folder, messages, audios, SAMPLING)
    with running_engine(folder, **LIMITS) as engine:
        found = tokens(run_requests(engine, [request, request]))
    assert found == [audio_answer(folder, messages, audios, NUM_TOKENS)[1]] * 2


def test_whisper(tmp_path: Path) -> None:
    """Recordings encoded on the device, whole and in chunks, and texts that go on by graphs."""
    folder = make_whisper_model(tmp_path)
    cases = [(spectrogram(seed), [5, 9, *range(30, 30 + length)]) for seed, length in enumerate((0, 20))]
    count = min(NUM_TOKENS, 30)  # of 60 positions
    requests = [whisper_request(*case, replace(SAMPLING, max_tokens=count)) for case in cases]
    expected = [whisper_reference(folder, *case, count) for case in cases]
    for budget in (2048, 60):
        with running_engine(folder, **LIMITS | {"max_num_batched_tokens": budget}) as engine:
            assert tokens(run_requests(engine, requests)) == expected
            assert tokens(run_requests(engine, requests)) == expected


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_caches_of_8_bits(dtype: torch.dtype) -> None:
    shape = AttentionShape(8, 2, 64, BLOCK_SIZE, HALF, torch.device("cuda"), cache_dtype=dtype)
    check_backend(create_backend("triton", shape, None), BATCHES["mixed"], None)


@pytest.mark.parametrize("grid", [INT4, INT8, E2M1, E4M3, E5M2], ids=lambda grid: grid.name)
@pytest.mark.parametrize(("group", "rows"), [(32, 1), (128, 2), (32, 20), (128, 20), (128, 70)])
def test_products_with_codes(grid: Grid, group: int, rows: int) -> None:
    with torch.device("cuda"):
        weight = coded(grid, 200, 384, group=group, with_offset=True, ordered=True)
    hidden = torch.randn(rows, 384, device="cuda", dtype=HALF)
    found = TritonOps().matrix(weight, None)(hidden, wide=True).double()
    expected = hidden.double() @ weight.wide(torch.float32).double().T
    assert (found - expected).norm() / expected.norm() < 5e-3


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("make", [heads_scan, delta_rule, partial(convolution, bias=True)])
def test_recurrences(make: Callable[[], Operation], dtype: torch.dtype) -> None:
    """Sequences whose tokens are processed one by one, and in chunks with products of 16 bits."""
    with torch.device("cuda"):
        tolerance = {torch.float32: 1e-4, torch.float16: 2e-2}.get(dtype, 6e-2)
        check_formula(TritonRecurrence(), make(), dtype, tolerance)


@pytest.mark.parametrize("size", [5, 300, 5000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_draw(size: int, dtype: torch.dtype) -> None:
    check_draws(size, dtype, "cuda")


def test_graphs_are_recorded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with running_engine(make_model(tmp_path / "llama", "llama"), **LIMITS) as engine:
        run(engine, random_prompts(1, 17, 90), SAMPLING)
    assert "CUDA graphs are not used" not in caplog.text


@pytest.mark.skipif(IS_EMULATED, reason="the interpreter compiles nothing")
@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("family", ["llama", "qwen3-moe"])
def test_serving_compiles_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, eager: bool) -> None:
    compiled: list[str] = []

    def note(**compilation: Any) -> None:
        compiled.append(compilation["repr"])

    asked = [
        GenerationRequest("r", prompt, replace(GREEDY, max_tokens=3 + index, **DRAWN[index % len(DRAWN)]))
        for index, prompt in enumerate(random_prompts(1, 17, 90, 16, 5, 240, 2, 64, 7))
    ]
    modules = {f"model.layers.0.self_attn.{name}": (64, 64) for name in ("q_proj", "o_proj")}
    if family == "qwen3-moe":
        modules |= {name: (64, 128) if "o_proj" in name else (128, 64) for name in modules}
    path = write_adapter(tmp_path / "adapter", low_rank(modules))
    adapter = read_adapter("a", str(path), "", 1, path, 16, modules)
    with running_engine(
        make_model(tmp_path / family, family), device="cuda", max_num_batched_tokens=70, enforce_eager=eager,
        enable_lora=True,
    ) as engine:  # fmt: skip
        monkeypatch.setattr(triton.knobs.runtime, "jit_post_compile_hook", note)
        monkeypatch.setattr(CudaCapture, "__call__", refuse)
        run_requests(engine, asked)
        run_requests(engine, asked[2:4])
        run_requests(engine, [dataclasses.replace(each, model="a", adapter=adapter) for each in asked[:3]] + asked[4:])
    assert not compiled


def refuse(*_: object) -> None:
    raise AssertionError("a graph is recorded while sequences wait")


@TOO_MUCH
@pytest.mark.parametrize("eager", [False, True])
def test_serving_takes_no_more_memory_than_a_start(tmp_path: Path, eager: bool) -> None:
    """Covers all sequences at once, with all options that need copies of the logits."""
    folder = make_model(tmp_path / "llama", "llama", vocab_size=128_000)
    every = replace(
        GREEDY, temperature=1.0, top_k=50, top_p=0.9, repetition_penalty=1.1, logit_bias=((5, 1.0),), logprobs=5
    )
    asked = [
        GenerationRequest("r", prompt, replace(every, processed_logprobs=index % 2 == 0, max_tokens=8))
        for index, prompt in enumerate(random_prompts(*[20] * 128))
    ]
    torch.cuda.reset_peak_memory_stats()
    with running_engine(
        folder, 1024, device="cuda", max_num_seqs=128, max_num_batched_tokens=512, enforce_eager=eager
    ) as engine:
        started = torch.cuda.max_memory_reserved()
        run_requests(engine, asked)
        assert torch.cuda.max_memory_reserved() <= started + (32 << 20)


@pytest.mark.parametrize("family", ["llama", "mamba2"])
def test_a_start_takes_no_more_memory_than_reckoned(tmp_path: Path, family: str) -> None:
    """The KV cache and the states get what is left besides a step in which all sequences sample."""
    folder = make_model(tmp_path / family, family, vocab_size=8_000 if IS_EMULATED else 128_000)
    options = engine_options(
        device="cuda", max_num_seqs=4 if IS_EMULATED else 128, max_num_batched_tokens=16 if IS_EMULATED else 512,
        max_model_len=256, enforce_eager=True, dtype="float32",
    )  # fmt: skip
    executor = create_executor(options.parallel)
    try:
        spec = executor.load(ModelOptions(model=str(folder)), options)
        size = size_kv_cache(spec, options)
        torch.cuda.reset_peak_memory_stats()
        executor.allocate(size.allocated)
        states = spec.state_bytes + size.num_snapshots * spec.state_bytes // options.scheduler.most_sequences
        caches = size.num_blocks * spec.bytes_per_block + states
        taken = torch.cuda.max_memory_reserved() - caches
    finally:
        executor.close()
    total = torch.cuda.get_device_properties().total_memory
    reckoned = int(total * options.cache.gpu_memory_utilization) - spec.available_bytes
    assert taken <= reckoned + (0 if IS_EMULATED else 64 << 20)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_rows_do_not_depend_on_the_rows_beside_them(operation: str, dtype: torch.dtype) -> None:
    with torch.device("cuda"):
        check_rows(InvariantTritonOps(), operation, dtype, 300)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("special", ["", "window", "window of parts", "softcap", "sinks", "slopes"])
@pytest.mark.parametrize("name", SHAPES)
def test_attention_rounds_prompts_and_single_tokens_alike(name: str, special: str, dtype: torch.dtype) -> None:
    with torch.device("cuda"):
        shape = AttentionShape(
            block_size=BLOCK_SIZE, device=torch.device("cuda"), dtype=dtype, batch_invariant=True, **SHAPES[name]
        )
        check_attention(create_backend("triton", shape, None), options_of(special, SHAPES[name]), LENGTHS)


@TOO_MUCH
@pytest.mark.parametrize("form", [form for form in TYPES if not (IS_EMULATED and form["dtype"] == "bfloat16")])
@pytest.mark.parametrize("family", ["llama", "gemma2", "mixtral", "deepseek-v3"])
@pytest.mark.parametrize("eager", [False, True])
def test_a_request_depends_on_itself_alone(tmp_path: Path, family: str, form: dict[str, Any], eager: bool) -> None:
    folder = make_model(tmp_path / family, family, initializer_range=0.02, vocab_size=164)
    check_requests(folder, device="cuda", enforce_eager=eager, **form)
