"""Jais, whose own code is only in its checkpoints' repositories: tokens of answers are those of plain torch."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import save_file
from torch.nn import functional as F

from engine_svc.models.registry import config_for
from quire.errors import StartupError
from tests.support.exact_answers import check_answers_of
from tests.support.run_engine import GREEDY, random_prompts, run, running_engine
from tests.support.tensor_executor import TensorExecutor
from tests.support.tiny_models import VOCAB_SIZE

SIZE, HEADS, LAYERS, INNER = 48, 3, 2, 96  # the number of heads is no power of two
CONFIG: dict[str, Any] = {
    "architectures": ["JAISLMHeadModel"], "model_type": "jais", "vocab_size": VOCAB_SIZE, "n_embd": SIZE,
    "n_head": HEADS, "n_layer": LAYERS, "n_inner": INNER, "n_positions": 256, "layer_norm_epsilon": 1e-2,
    "activation_function": "swiglu", "position_embedding_type": "alibi", "mup_scale_qk_dot_by_d": True,
    "mup_embeddings_scale": 3.0, "mup_output_alpha": 2.0, "mup_width_scale": 0.25, "tie_word_embeddings": True,
    "eos_token_id": 2, "dtype": "float32",
}  # fmt: skip
# Those of 4 heads, and the first of 8: 2 ** -4, 2 ** -8, 2 ** -2.
SLOPES = (2**-4.0, 2**-8.0, 2**-2.0)


def make_jais(folder: Path) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    shapes = {
        "attn.c_attn": (SIZE, 3 * SIZE), "attn.c_proj": (SIZE, SIZE), "mlp.c_fc": (SIZE, INNER),
        "mlp.c_fc2": (SIZE, INNER), "mlp.c_proj": (INNER, SIZE),
    }  # fmt: skip
    tensors = {"transformer.wte.weight": torch.randn(VOCAB_SIZE, SIZE)}
    for layer in range(LAYERS):
        for name, shape in shapes.items():
            tensors[f"transformer.h.{layer}.{name}.weight"] = torch.randn(shape) * 0.3
            tensors[f"transformer.h.{layer}.{name}.bias"] = torch.randn(shape[1]) * 0.3
    for norm in [f"h.{layer}.ln_{number}" for layer in range(LAYERS) for number in (1, 2)] + ["ln_f"]:
        tensors[f"transformer.{norm}.weight"] = 1 + torch.randn(SIZE) * 0.2
        tensors[f"transformer.{norm}.bias"] = torch.randn(SIZE) * 0.2
    others = {
        "transformer.relative_pe.slopes": torch.tensor(SLOPES),
        "transformer.h.0.attn.bias": torch.ones(1, 1, 4, 4),
    }
    save_file(tensors | others, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return {name.removeprefix("transformer."): tensor.double() for name, tensor in tensors.items()}


def reference(tensors: dict[str, torch.Tensor], ids: torch.Tensor) -> torch.Tensor:
    """Logits, in float64."""

    def norm(name: str, hidden: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(hidden, (SIZE,), tensors[f"{name}.weight"], tensors[f"{name}.bias"], 1e-2)

    def product(name: str, hidden: torch.Tensor) -> torch.Tensor:
        return hidden @ tensors[f"{name}.weight"] + tensors[f"{name}.bias"]

    places = torch.arange(len(ids))
    distances = places[:, None] - places
    biases = -torch.tensor(SLOPES)[:, None, None] * distances.masked_fill(distances < 0, 0)
    hidden = tensors["wte.weight"][ids] * 3.0
    for layer in (f"h.{index}" for index in range(LAYERS)):
        projected = product(f"{layer}.attn.c_attn", norm(f"{layer}.ln_1", hidden))
        query, key, value = (each.unflatten(1, (HEADS, -1)).transpose(0, 1) for each in projected.chunk(3, 1))
        scores = query @ key.transpose(1, 2) / (SIZE // HEADS) + biases
        shares = scores.masked_fill(distances < 0, -math.inf).softmax(-1)
        hidden = hidden + product(f"{layer}.attn.c_proj", (shares @ value).transpose(0, 1).flatten(1))
        normed = norm(f"{layer}.ln_2", hidden)
        gated = product(f"{layer}.mlp.c_fc", normed) * F.silu(product(f"{layer}.mlp.c_fc2", normed))
        hidden = hidden + product(f"{layer}.mlp.c_proj", gated)
    return norm("ln_f", hidden) @ tensors["wte.weight"].T * 0.5


@pytest.mark.parametrize("ranks", [1, 3])
def test_answers(tmp_path: Path, ranks: int) -> None:
    tensors, prompts = make_jais(tmp_path), random_prompts(1, 20, 45)
    many: dict[str, Any] = {"executor": TensorExecutor(), "tensor_parallel_size": ranks, "cpu_threads": 1}
    with running_engine(tmp_path, **many if ranks > 1 else {}) as engine:
        found = run(engine, prompts, replace(GREEDY, max_tokens=12, logprobs=4))
    check_answers_of(lambda ids: SimpleNamespace(logits=reference(tensors, ids[0])[None]), prompts, found, 12)


def test_older_names_of_factors() -> None:
    given = {name: value for name, value in CONFIG.items() if not name.startswith("mup_")}
    older = {"scale_qk_dot_by_d": True, "embeddings_scale": 3.0, "width_scale": 0.5}
    assert config_for(given | older) == config_for(CONFIG)
    assert config_for(given).attention_scale == (SIZE // HEADS) ** -0.5


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"position_embedding_type": "learned"}, "position_embedding_type is 'learned'; expected 'alibi'"),
        ({"activation_function": "gelu"}, "activation_function is 'gelu'"),
        ({"reorder_and_upcast_attn": True}, "has reorder_and_upcast_attn"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(StartupError, match=words):
        config_for(CONFIG | changes)
