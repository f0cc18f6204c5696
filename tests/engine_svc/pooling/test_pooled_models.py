"""Pooled outputs equal Transformers', family by family, in float32."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from quire.errors import StartupError
from tests.support.native import every_level
from tests.support.pooled_models import (
    DECODERS,
    ENCODERS,
    FAMILIES,
    LABELS,
    change_config,
    make_pooled,
    pool,
    reference,
    run,
    runner_of,
    sequence,
)
from tests.support.run_engine import random_prompts

PROMPTS = random_prompts(1, 2, 5, 16, 17, 40, 90)
Folder = Callable[..., Path]
# Variants of families that are only tested with heads.
VARIANTS = {"bert-relu", "bert-tanh", "gte-untyped"}


@pytest.fixture(scope="module")
def pooled_folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """Returns a function that makes each model once: pooled_folder(family, suffix, **changes) → folder."""
    made: dict[str, Path] = {}

    def get(family: str, suffix: str = "Model", **changes: Any) -> Path:
        key = f"{family} {suffix} {sorted(changes.items())}"
        if key not in made:
            made[key] = make_pooled(tmp_path_factory.mktemp(family), family, suffix, **changes)
        return made[key]

    return get


def close(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    """Compares cosine similarities and values."""
    for own, other in zip(found, expected, strict=True):
        assert own.shape == other.shape
        assert 1 - torch.cosine_similarity(own.double(), other.double(), dim=-1).min() < 1e-6
        torch.testing.assert_close(own, other, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("family", FAMILIES)
def test_embeddings_of_tokens_and_sequences(pooled_folder: Folder, family: str) -> None:
    folder = pooled_folder(family)
    hidden = reference(folder, PROMPTS, transformers.AutoModel)
    runner = runner_of(folder)
    close(run(runner, [sequence(prompt, "token_embed") for prompt in PROMPTS]), hidden)
    kind = "CLS" if family in ENCODERS else "LAST"
    close(run(runner, [sequence(prompt, "embed") for prompt in PROMPTS]), [pool(each, kind) for each in hidden])


@pytest.mark.parametrize("family", [*sorted(set(FAMILIES) - VARIANTS), "gpt2"])
def test_classes_of_sequences(pooled_folder: Folder, family: str) -> None:
    folder = pooled_folder(family, "ForSequenceClassification")
    logits = reference(folder, PROMPTS, transformers.AutoModelForSequenceClassification)
    runner = runner_of(folder)
    close(run(runner, [sequence(prompt, "classify") for prompt in PROMPTS]), logits)
    active = run(runner, [sequence(prompt, "classify", use_activation=True) for prompt in PROMPTS])
    close(active, [each.softmax(-1) for each in logits])


@pytest.mark.parametrize("family", [*sorted(set(ENCODERS) - VARIANTS), "qwen3", "bloom", "gpt2"])
def test_classes_of_tokens(pooled_folder: Folder, family: str) -> None:
    folder = pooled_folder(family, "ForTokenClassification")
    logits = reference(folder, PROMPTS, transformers.AutoModelForTokenClassification)
    assert logits[0].shape == (1, LABELS)
    close(run(runner_of(folder), [sequence(prompt, "token_classify") for prompt in PROMPTS]), logits)


@pytest.mark.parametrize("family", DECODERS)
def test_models_that_generate_become_embedding_models(pooled_folder: Folder, family: str) -> None:
    folder = pooled_folder(family, "ForCausalLM")
    hidden = reference(folder, PROMPTS, transformers.AutoModel)
    runner = runner_of(folder, runner="pooling", pooler_config={"pooling_type": "mean"})
    close(run(runner, [sequence(prompt, "embed") for prompt in PROMPTS]), [pool(each, "MEAN") for each in hidden])


@pytest.mark.parametrize("family", ["bert", "nomic-bert"])
def test_types_of_tokens(pooled_folder: Folder, family: str) -> None:
    folder = pooled_folder(family, "ForSequenceClassification")
    types = [[int(place > len(prompt) // 2) for place in range(len(prompt))] for prompt in PROMPTS]
    auto = transformers.AutoModelForSequenceClassification
    logits = reference(folder, PROMPTS, auto, token_type_ids=types)
    sequences = [sequence(prompt, "classify", own) for prompt, own in zip(PROMPTS, types, strict=True)]
    close(run(runner_of(folder), sequences), logits)
    assert not torch.allclose(logits[-1], reference(folder, PROMPTS[-1:], auto)[0])


@every_level
@pytest.mark.parametrize("family", ["modernbert"])
def test_families_on_each_level(pooled_folder: Folder, level: str, family: str) -> None:
    folder = pooled_folder(family)
    hidden = reference(folder, PROMPTS, transformers.AutoModel)
    close(run(runner_of(folder, cpu_kernels=level), [sequence(each, "token_embed") for each in PROMPTS]), hidden)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("family", ["bert", "modernbert", "mistral"])
def test_families_by_torch(pooled_folder: Folder, family: str, backend: str) -> None:
    folder = pooled_folder(family)
    hidden = reference(folder, PROMPTS, transformers.AutoModel)
    runner = runner_of(folder, cpu_kernels="torch", attention_backend=backend)
    close(run(runner, [sequence(each, "token_embed") for each in PROMPTS]), hidden)


@pytest.mark.parametrize("family", ["bert", "qwen3"])
def test_bfloat16_is_near(pooled_folder: Folder, family: str) -> None:
    folder = pooled_folder(family)
    hidden = reference(folder, PROMPTS, transformers.AutoModel)
    found = run(runner_of(folder, dtype="bfloat16"), [sequence(each, "embed") for each in PROMPTS])
    kind = "CLS" if family == "bert" else "LAST"
    for own, other in zip(found, hidden, strict=True):
        assert torch.cosine_similarity(own, pool(other, kind), dim=0) > 0.99


@pytest.mark.parametrize("family", ["bert", "modernbert", "qwen3"])
def test_what_shares_a_batch_changes_nothing(pooled_folder: Folder, family: str) -> None:
    runner = runner_of(pooled_folder(family))
    together = run(runner, [sequence(each, "embed", normalize=True) for each in PROMPTS])
    alone = [run(runner, [sequence(each, "embed", normalize=True)])[0] for each in PROMPTS]
    assert runner.spec().batch_invariant
    assert all(own.equal(other) for own, other in zip(together, alone, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_families_by_triton(pooled_folder: Folder, family: str) -> None:
    """Runs in Triton's interpreter."""
    folder = pooled_folder(family)
    prompts = PROMPTS[:4]
    hidden = reference(folder, prompts, transformers.AutoModel)
    runner = runner_of(folder, cpu_kernels="torch", attention_backend="triton")
    close(run(runner, [sequence(each, "token_embed") for each in prompts]), hidden)


def test_a_head_of_another_size_is_told(pooled_folder: Folder, tmp_path: Path) -> None:
    folder = make_pooled(tmp_path, "bert", "ForSequenceClassification")
    change_config(folder, id2label={"0": "no", "1": "yes"})
    with pytest.raises(StartupError, match=r"classifier\.\w+: shape \[3"):
        runner_of(folder)


def test_a_model_with_classes_can_embed(pooled_folder: Folder) -> None:
    folder = pooled_folder("bert", "ForSequenceClassification")
    hidden = reference(folder, PROMPTS, transformers.AutoModel)
    runner = runner_of(folder, convert="embed", pooler_config={"pooling_type": "MEAN"})
    close(run(runner, [sequence(each, "embed") for each in PROMPTS]), [pool(each, "MEAN") for each in hidden])
