"""What a step on a CPU leaves to torch: only what docs/performance.md lists, with the reason for each."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from engine_svc.attention.cpu import CpuBackend
from engine_svc.requests.request import GenerationRequest
from tests.engine_svc.models.conftest import ModelFolder
from tests.support.native import needs_native
from tests.support.run_engine import GREEDY, random_prompts, run, run_requests, running_engine

DOCUMENT = Path(__file__).parents[3] / "docs" / "performance.md"
# Operators that only name or allocate memory and compute nothing.
NO_WORK = {
    "alias", "chunk", "contiguous", "detach", "detach_", "empty", "empty_like", "expand", "flatten", "lift_fresh",
    "new_empty", "reshape", "resolve_conj", "resolve_neg", "select", "slice", "split", "split_with_sizes", "to",
    "unbind", "unflatten", "unsqueeze", "view",
}  # fmt: skip

FAMILIES = (
    "llama", "gemma2", "gemma4-moe", "gemma4-small", "mimo", "phi3-partial", "mixtral", "qwen2-moe",
    "deepseek-v2-plain", "deepseek-v3", "jamba", "granite-hybrid", "qwen3-next", "lfm2-moe", "lfm3",
    "nemotron-h-latent", "falcon-h1", "minimax", "olmo-hybrid", "kimi-linear", "recurrent-gemma", "glm4",
    "cohere-norms", "hunyuan", "codegen", "gpt-neo", "bloom", "mpt-clipped", "opt-projected", "gpt2", "stablelm-12b",
    "apertus",
)  # fmt: skip
# Those whose layers compute in float32 with other kernels than in 16 bits: products, experts, states.
IN_FLOAT32 = ("llama", "gemma2", "mixtral", "deepseek-v3", "jamba", "qwen3-next", "lfm3", "apertus")


class Operators(TorchDispatchMode):
    """Records which of torch's operators run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(str(func).split(".")[1])
        return func(*args, **(kwargs or {}))


def listed() -> set[str]:
    """Returns the operators named before the colons in the document's list."""
    section = DOCUMENT.read_text().partition("## What torch still computes")[2].partition("\n## ")[0]
    return {name for entry in re.findall(r"^\* ([^:]+):", section, re.MULTILINE) for name in re.findall(r"\w+", entry)}


@pytest.fixture
def unseen_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides attention from `Operators`: backends have their own tests, and shapes without a kernel use torch."""

    def unseen(call: Callable[..., Any]) -> Callable[..., Any]:
        def quiet(*args: Any) -> Any:
            with _disable_current_modes():
                return call(*args)

        return quiet

    for name in ("prepare", "attend"):
        monkeypatch.setattr(CpuBackend, name, unseen(getattr(CpuBackend, name)))


@needs_native
@pytest.mark.usefixtures("unseen_attention")
@pytest.mark.parametrize(
    ("family", "dtype"),
    [*((family, "bfloat16") for family in FAMILIES), *((family, "float32") for family in IN_FLOAT32)],
)
def test_steps_run_what_is_listed(model_folder: ModelFolder, family: str, dtype: str) -> None:
    """Covers chunked prompts beside decoding sequences, greedy and sampled."""
    drawn = replace(GREEDY, temperature=1.0, top_p=0.9, top_k=20, min_p=0.01, seed=1, max_tokens=3)
    samplings = (drawn, replace(GREEDY, max_tokens=5), drawn)  # the last one decodes on its own
    prompts = random_prompts(5, 17, 9)
    requests = [GenerationRequest("r", *each) for each in zip(prompts, samplings, strict=True)]
    with running_engine(model_folder(family), dtype=dtype, max_num_batched_tokens=16, enforce_eager=True) as engine:
        run(engine, random_prompts(3))
        with Operators() as operators:
            run_requests(engine, requests)
    assert operators.names - NO_WORK <= listed()
