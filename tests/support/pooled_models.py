"""Tiny random models for pooling, reference results by Transformers, and our results."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from engine_svc.config_formats.registry import read_model_config
from engine_svc.core.pooling_engine import OneShotSteps
from engine_svc.parallel.group import ParallelGroups
from engine_svc.plan import AdapterChanges, AdapterPlacement, PoolingSpec
from engine_svc.pooling.runner import PoolingRunner
from engine_svc.pooling_form.form import pooling_form
from engine_svc.pooling_plan import PooledOutput, PooledSequence, PoolingPlan
from tests.support.engine_options import engine_options
from tests.support.waiting import WAIT_SECONDS

VOCAB_SIZE, LABELS = 160, 3
_SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
    "num_attention_heads": 4, "max_position_embeddings": 200, "pad_token_id": 0, "bos_token_id": None,
    "eos_token_id": None, "initializer_range": 0.2, "num_labels": LABELS,
}  # fmt: skip
_GROUPED = {"num_key_value_heads": 2, "head_dim": 16}
_ROBERTA = {"type_vocab_size": 1, "pad_token_id": 1}

# By family: the prefix of Transformers' classes (before Config, Model and so on), and changes of the shape.
ENCODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("Bert", {"type_vocab_size": 2}),
    "bert-relu": ("Bert", {"hidden_act": "relu"}),
    "bert-tanh": ("Bert", {"hidden_act": "gelu_new"}),
    "roberta": ("Roberta", _ROBERTA),
    "xlm-roberta": ("XLMRoberta", _ROBERTA),
    "distilbert": (
        "DistilBert", {"dim": 64, "hidden_dim": 96, "n_layers": 3, "n_heads": 4},
    ),
    "modernbert": (
        "ModernBert", {"local_attention": 16, "num_hidden_layers": 4, "cls_token_id": 1, "sep_token_id": 2},
    ),
    "modernbert-mean": (
        "ModernBert",
        {
            "local_attention": 16, "classifier_pooling": "mean", "norm_bias": True, "attention_bias": True,
            "classifier_bias": True, "cls_token_id": 1, "sep_token_id": 2,
        },
    ),
    "gte": ("Gte", {"type_vocab_size": 1}),
    "gte-untyped": ("Gte", {"type_vocab_size": 0}),
    "nomic-bert": ("NomicBert", {"type_vocab_size": 2}),
}  # fmt: skip
DECODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", _GROUPED),
    "qwen2": ("Qwen2", {"num_key_value_heads": 2}),
    "qwen3": ("Qwen3", _GROUPED),
    "mistral": ("Mistral", _GROUPED | {"sliding_window": 16}),
    "bloom": ("Bloom", {}),
    "gpt-neo": ("GPTNeo", {"window_size": 16, "attention_types": [[["local", "global", "local"], 1]]}),
    "gpt-neox": ("GPTNeoX", {}),
    "gemma2": ("Gemma2", _GROUPED | {"sliding_window": 16, "query_pre_attn_scalar": 24}),
}
OTHERS = {
    "gemma3": ("Gemma3Text", _GROUPED | {"sliding_window": 16, "num_hidden_layers": 6}),
    "gpt2": ("GPT2", {"n_positions": 200}),
}
FAMILIES = ENCODERS | DECODERS


def make_pooled(folder: Path, family: str, suffix: str, **changes: Any) -> Path:
    """A model of a family with a suffix such as Model or ForSequenceClassification, in `folder`."""
    prefix, own = (FAMILIES | OTHERS)[family]
    config = getattr(transformers, f"{prefix}Config")(**(_SHAPE | own | changes))
    torch.manual_seed(0)
    model = getattr(transformers, f"{prefix}{suffix}")(config).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias") or "norm" in name.lower():  # initially zeros and ones, which would not show mistakes
            parameter.data += torch.randn_like(parameter) * 0.1
    model.save_pretrained(folder)
    return folder


def change_config(folder: Path, **changes: Any) -> None:
    """Changes fields of config.json; None removes a field."""
    file = folder / "config.json"
    config = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({name: value for name, value in config.items() if value is not None}))


@torch.inference_mode()
def reference(folder: Path, prompts: Sequence[Sequence[int]], auto: Any, **inputs: Any) -> list[torch.Tensor]:
    """Hidden states, or logits if there are any, of each prompt alone, by Transformers in float32."""
    model = auto.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    found = []
    for index, prompt in enumerate(prompts):
        own = {name: torch.tensor([values[index]]) for name, values in inputs.items()}
        output = model(input_ids=torch.tensor([list(prompt)]), **own)
        found.append((output.logits if hasattr(output, "logits") else output.last_hidden_state)[0])
    return found


def runner_of(folder: Path, tokens: Sequence[int] = (), **options: Any) -> PoolingRunner:
    """A loaded model, in float32 unless the options say otherwise."""
    chosen = engine_options(**({"dtype": "float32"} | options))
    form = pooling_form(read_model_config(folder, chosen.form), folder, chosen.pooling)
    runner = PoolingRunner(folder, form, tokens, chosen, torch.device("cpu"), ParallelGroups())
    runner.allocate()
    return runner


def pooling_of(runner: PoolingRunner) -> PoolingSpec:
    """What is known of a loaded model's outputs."""
    found = runner.spec().pooling
    assert found is not None
    return found


def sequence(token_ids: Sequence[int], task: str, types: Sequence[int] = (), **changes: Any) -> PooledSequence:
    """A sequence whose results are not normalized or activated, unless the changes say so."""
    fields = {"dimensions": 0, "normalize": False, "use_activation": False} | changes
    return PooledSequence(list(token_ids), list(types), task, **fields)


def run(runner: PoolingRunner, sequences: Sequence[PooledSequence]) -> list[torch.Tensor]:
    """The results of one step for sequences."""
    return [values_of(output) for output in runner.run(PoolingPlan(1, list(sequences))).outputs]


def place_adapters(steps: OneShotSteps[PooledSequence, PooledOutput], folders: Mapping[int, Path]) -> None:
    """Reads adapters, and places them in slots of the device."""
    read = steps.run(PoolingPlan(1, [], AdapterChanges(read={slot: str(each) for slot, each in folders.items()})))
    found, deadline = dict(read.read_adapters), time.monotonic() + WAIT_SECONDS
    while len(found) < len(folders):
        assert time.monotonic() < deadline
        found |= steps.run(PoolingPlan(1, [])).read_adapters
        time.sleep(0.01)
    assert set(found.values()) == {""}, found
    steps.run(PoolingPlan(1, [], AdapterChanges(placed=[AdapterPlacement(slot, slot) for slot in folders])))


def values_of(output: PooledOutput | str) -> torch.Tensor:
    """An output's values."""
    assert isinstance(output, PooledOutput), output
    return torch.from_numpy(np.frombuffer(output.data, "<f4").reshape(output.shape).copy())


def pool(hidden: torch.Tensor, kind: str) -> torch.Tensor:
    """[tokens, size] → [size]"""
    return {"CLS": hidden[0], "LAST": hidden[-1], "MEAN": hidden.mean(0)}[kind]
