"""Logits processors of operators and of requests in an engine, and errors in some of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from engine_svc.requests.outputs import SequenceDelta
from engine_svc.requests.request import GenerationRequest
from engine_svc.sampling.custom import load_processors
from quire.errors import REQUEST_FAULT, StartupError
from quire.prompt_embeds import PromptEmbeds
from quire.sampling import LogitsProcessorCall
from tests.support import logits_processors
from tests.support.run_engine import GREEDY, random_prompts, run, run_requests, running_engine, tokens
from tests.support.tiny_models import VOCAB_SIZE, make_model

OWN = logits_processors.__name__
PROMPTS = random_prompts(9, 20, 33)
MULTIPLES = replace(GREEDY, vllm_xargs=b'{"multiple": 7}', max_tokens=20)
SUCCESSOR = LogitsProcessorCall(f"{OWN}:Successor", b"[2]", b'{"count": 5}')
COUNTING = replace(GREEDY, n=2, temperature=1.0, seed=1, max_tokens=9, logits_processors=(SUCCESSOR,))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("llama"), "llama-untied")


@pytest.mark.parametrize("executor", ["uni", "mp"])
def test_processors_change_what_is_drawn(folder: Path, executor: str) -> None:
    """Covers the operator's, applied if a request's arguments say so, and the request's own, also in steps ahead."""
    with running_engine(folder) as engine:
        plain = tokens(run(engine, PROMPTS))
    with running_engine(
        folder, logits_processors=(f"{OWN}.OnlyMultiples",), distributed_executor_backend=executor
    ) as engine:
        assert tokens(run(engine, PROMPTS)) == plain
        for output in tokens(run(engine, PROMPTS, MULTIPLES)):
            assert len(set(output)) > 1
            assert not any(token_id % 7 for token_id in output)
        for prompt, outputs in zip(PROMPTS, run(engine, PROMPTS, COUNTING), strict=True):
            expected = [(prompt[-1] + 2 * step) % VOCAB_SIZE for step in range(1, 6)]
            assert [output.token_ids[:5] for output in outputs] == [expected] * 2
            assert outputs[0].token_ids[5:] != outputs[1].token_ids[5:]


def test_they_are_told_of_tokens_and_not_of_embeddings(folder: Path) -> None:
    sampling = replace(GREEDY, max_tokens=4, logits_processors=(LogitsProcessorCall(f"{OWN}:Counted", b"[]", b"{}"),))
    rows = PromptEmbeds("float32", 64, bytes(4 * 64 * 9))
    with running_engine(folder) as engine:
        assert tokens(run(engine, PROMPTS[:1], sampling)) == [[99, 100, 101, 102]]
        assert tokens(run_requests(engine, [GenerationRequest("r", [], sampling, prompt_embeds=rows)])) == [
            [0, 1, 2, 3]
        ]


@pytest.mark.parametrize("how", ["raises", "none", "short", "nan", "row", "int"])
def test_a_processor_that_fails_fails_its_own_sequence(folder: Path, how: str) -> None:
    broken = LogitsProcessorCall(f"{OWN}.Broken", f'["{how}"]'.encode())
    found: dict[int, list[SequenceDelta]] = {0: [], 1: [], 2: []}
    with running_engine(folder) as engine:
        expected = tokens(run(engine, PROMPTS[:2]))
        for key in (0, 1):
            engine.add(key, GenerationRequest("r", PROMPTS[key], GREEDY))
        engine.add(2, GenerationRequest("r", PROMPTS[2], replace(GREEDY, logits_processors=(broken,))))
        while engine.has_work:
            for delta in engine.step():
                found[delta.key].append(delta)
    error = found[2][-1].error
    assert error is not None
    assert error.reason == REQUEST_FAULT
    assert [[token_id for delta in found[key] for token_id in delta.token_ids] for key in (0, 1)] == expected


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("Successor", "has no module"), ("no.such.Class", "No module named"), (f"{OWN}.Missing", "not a class derived"),
        (f"{OWN}.not_a_class", "not a class derived"), (f"{OWN}:Abstract", "has no method apply"),
        ("pathlib.Path", "not a class derived from quire.logits_processor.LogitsProcessor"),
    ],
)  # fmt: skip
def test_what_is_no_processor_ends_the_start(name: str, why: str) -> None:
    with pytest.raises(StartupError, match=why) as refused:
        load_processors([f"{OWN}.Successor", name])
    assert f"--logits-processors {name}" in str(refused.value)
