"""Vectors of ColQwen's tokens, and scores of jina-reranker-m0, equal Transformers' in float32."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file

from engine_svc.pooling_worker import build_pooling
from engine_svc.requests.pooling import PoolingInput, PoolingRequest
from quire.options.model import ModelOptions
from tests.engine_svc.pooling.test_pooled_images import CASES, sequences_of
from tests.support.engine_options import engine_options
from tests.support.lora import write_adapter
from tests.support.pooled_models import change_config, place_adapters, run, runner_of, sequence, values_of
from tests.support.run_engine import random_prompts
from tests.support.vision_models import make_vision_model
from tests.support.vision_models.reference import load_model, reference_hidden

SIZE = 24
PROMPTS = random_prompts(3, 20)


def as_retriever(folder: Path, name: str, *, is_nested: bool) -> torch.nn.Linear:
    """Makes a vision-language model one of retrieval, with a projection, which is returned."""
    file, weights = folder / "config.json", folder / "model.safetensors"
    config, tensors = json.loads(file.read_text()), load_file(weights)
    projection = torch.nn.Linear(64, SIZE, bias=is_nested)
    torch.nn.init.normal_(projection.weight)
    layer, prefix = ("embedding_proj_layer", "vlm.") if is_nested else ("custom_text_proj", "")
    tensors = {f"{prefix}{name}": each for name, each in tensors.items()}
    tensors |= {f"{layer}.{name}": each for name, each in projection.state_dict().items()}
    save_file(tensors, weights, {"format": "pt"})
    if is_nested:
        config = {"model_type": "colqwen2", "vlm_config": config, "embedding_dim": SIZE}
    file.write_text(json.dumps(config | {"architectures": [name]} | ({} if is_nested else {"dim": SIZE})))
    for settings in (folder / "processor_config.json", folder / "preprocessor_config.json"):
        if settings.exists():
            fields = json.loads(settings.read_text())
            settings.write_text(
                json.dumps(fields | {"processor_class": f"{name.removesuffix('ForRetrieval')}Processor"})
            )
    return projection


@pytest.mark.parametrize(("family", "name"), [
    ("qwen2_vl", "ColQwen2ForRetrieval"), ("qwen2_5_vl", "ColQwen2ForRetrieval"), ("qwen3_vl", "ColQwen3"),
])  # fmt: skip
def test_vectors_of_tokens(tmp_path: Path, family: str, name: str) -> None:
    folder = make_vision_model(tmp_path, family)
    hidden = [reference_hidden(folder, messages, images)[0] for messages, images in CASES]
    projection = as_retriever(folder, name, is_nested=name == "ColQwen2ForRetrieval")
    runner = runner_of(folder)
    assert runner.spec().accepts_images
    with torch.no_grad():
        expected = [torch.nn.functional.normalize(projection(each), dim=-1) for each in hidden]
    given = sequences_of(folder, "token_embed", normalize=True)
    for found, own in zip(run(runner, given), expected, strict=True):
        torch.testing.assert_close(found, own, atol=1e-4, rtol=1e-3)


def test_adapters(tmp_path: Path) -> None:
    """On the text model's layers and the projection, as PEFT names them in Transformers' class."""
    folder = make_vision_model(tmp_path / "base", "qwen2_vl")
    modules = {f"vlm.language_model.layers.{layer}.self_attn.q_proj": (64, 64) for layer in range(2)}
    adapter = write_adapter(tmp_path / "adapter", modules | {"embedding_proj_layer": (SIZE, 64)}, size=0.5)
    weights = load_file(folder / "model.safetensors")
    own = {name.replace("vlm.language_model", "model") + ".weight": adapter.deltas[name].float() for name in modules}
    assert own.keys() <= weights.keys()
    merged = shutil.copytree(folder, tmp_path / "merged")
    changed = {name: each + own[name] if name in own else each for name, each in weights.items()}
    save_file(changed, merged / "model.safetensors", {"format": "pt"})
    messages, images = CASES[0]
    hidden = reference_hidden(merged, messages, images)[0]
    projection = as_retriever(folder, "ColQwen2ForRetrieval", is_nested=True)
    with torch.no_grad():
        projection.weight += adapter.deltas["embedding_proj_layer"].float()
        expected = torch.nn.functional.normalize(projection(hidden), dim=-1)
    runner = runner_of(folder, enable_lora=True, max_loras=2)
    place_adapters(runner, {2: adapter.folder})
    given = sequences_of(folder, "token_embed", normalize=True)[:2]
    seen = msgspec.structs.replace(given[0], adapter_slot=2)
    found = run(runner, [given[1], seen, given[0]])
    torch.testing.assert_close(found[1], expected, atol=1e-4, rtol=1e-3)
    assert not torch.allclose(found[1], found[2])


def test_scores_of_jinas_reranker(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """By the hidden state of a token that is added behind the prompt."""
    folder = make_vision_model(tmp_path, "qwen2_vl")
    model = load_model(folder, torch.float32).model
    head = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    with torch.inference_mode():
        hidden = [model(input_ids=torch.tensor([[*each, 100]])).last_hidden_state[0, -1] for each in PROMPTS]
        expected = torch.cat([head(each) for each in hidden])
    weights = folder / "model.safetensors"
    tensors = load_file(weights) | {f"score.{name}": each for name, each in head.state_dict().items()}
    save_file(tensors, weights, {"format": "pt"})
    change_config(folder, architectures=["JinaVLForRanking"])
    config = json.loads((folder / "config.json").read_text())
    options = engine_options(dtype="float32")
    engine, info, spec = build_pooling(folder, config, ModelOptions(model=str(folder)), options)
    assert info.pooling is not None and info.pooling.is_cross_encoder
    assert info.max_model_len == spec.max_model_len - 1
    engine.add(1, PoolingRequest("r", tuple(PoolingInput(each) for each in PROMPTS)))
    (delta,) = engine.step()
    found = torch.cat([values_of(each) for each in delta.pooled])
    torch.testing.assert_close(found, torch.sigmoid(expected - 2.65), atol=1e-4, rtol=1e-3)
    adapter = write_adapter(tmp_path / "adapter", {"model.layers.0.self_attn.q_proj": (64, 64)}, size=0.5)
    count = sum(map(len, PROMPTS))  # what a step takes, not counting what is added
    runner = runner_of(folder, enable_lora=True, max_num_batched_tokens=count, max_model_len=count)
    place_adapters(runner, {1: adapter.folder})
    given = [sequence([*each, 100], "classify", adapter_slot=1) for each in PROMPTS]
    alone = [run(runner, [each])[0] for each in given]
    torch.testing.assert_close(run(runner, given), alone)
    assert "cannot run together" not in caplog.text
