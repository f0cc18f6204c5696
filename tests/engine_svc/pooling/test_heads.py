"""Heads and layouts of pooled models: rewards, rerankers, late interaction, layers of sentence-transformers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers

from engine_svc.pooling_worker import build_pooling
from engine_svc.requests.pooling import PoolingInput, PoolingRequest
from quire.errors import StartupError
from quire.options.model import ModelOptions
from tests.engine_svc.pooling.test_pooled_models import PROMPTS, close
from tests.support.deepseek_v4 import make_deepseek_v4
from tests.support.engine_options import engine_options
from tests.support.pooled_models import (
    VOCAB_SIZE,
    change_config,
    make_pooled,
    pool,
    pooling_of,
    reference,
    run,
    runner_of,
    sequence,
)
from tests.support.tiny_models import make_model

Tensors = dict[str, torch.Tensor]


def change_weights(folder: Path, change: Callable[[Tensors], Mapping[str, torch.Tensor]]) -> None:
    file = folder / "model.safetensors"
    save_file({name: tensor.contiguous() for name, tensor in change(load_file(file)).items()}, file)


def add_tokenizer(folder: Path) -> None:
    """Writes a tokenizer with the words <0>, <1>, …"""
    words = {f"<{token}>": token for token in range(VOCAB_SIZE)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<0>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<0>", sep_token="<1>")
    fast.save_pretrained(folder)


def text_of(prompt: list[int]) -> str:
    return " ".join(f"<{token}>" for token in prompt)


@pytest.mark.parametrize(("kind", "labels"), [("RewardModel", 1), ("ProcessRewardModel", 2)])
def test_rewards(tmp_path: Path, kind: str, labels: int) -> None:
    folder = make_pooled(tmp_path, "qwen2", "Model")
    hidden = reference(folder, PROMPTS, transformers.AutoModel)
    size = hidden[0].shape[-1]
    head = {
        "score.0.weight": torch.randn(size, size), "score.0.bias": torch.randn(size),
        "score.2.weight": torch.randn(labels, size), "score.2.bias": torch.randn(labels),
    }  # fmt: skip
    change_weights(folder, lambda tensors: {f"model.{name}": each for name, each in tensors.items()} | head)
    change_config(folder, architectures=[f"Qwen2For{kind}"], num_labels=labels, id2label=None, label2id=None)
    expected = [
        torch.relu(each @ head["score.0.weight"].T + head["score.0.bias"]) @ head["score.2.weight"].T
        + head["score.2.bias"]
        for each in hidden
    ]
    close(run(runner_of(folder), [sequence(each, "token_classify") for each in PROMPTS]), expected)


def test_rewards_of_steps_alone(tmp_path: Path) -> None:
    folder = make_pooled(tmp_path, "qwen2", "ForTokenClassification")
    prompt = [5, 9, 7, 5, 9]
    (logits,) = reference(folder, [prompt], transformers.AutoModelForTokenClassification)
    options = {"pooling_type": "STEP", "step_tag_id": 9, "returned_token_ids": [2, 0]}
    runner = runner_of(folder, pooler_config=options)
    close(run(runner, [sequence(prompt, "token_classify")]), [logits[[1, 4]][:, [2, 0]]])
    (nothing,) = run(runner, [sequence([5, 6], "token_classify")])
    assert nothing.shape == (0, 2)


@pytest.mark.parametrize("tied", [False, True])
def test_logits_of_two_tokens_as_a_score(tmp_path: Path, tied: bool) -> None:
    """Qwen3-Reranker scores by the logits of two tokens."""
    folder = make_pooled(tmp_path, "qwen3", "ForCausalLM", tie_word_embeddings=tied)
    add_tokenizer(folder)
    logits = reference(folder, PROMPTS, transformers.AutoModelForCausalLM)
    change_config(folder, architectures=["Qwen3ForSequenceClassification"], classifier_from_token=["<3>", "<8>"])
    pairs = [each[-1, [3, 8]] for each in logits]
    close(run(runner_of(folder, tokens=(3, 8)), [sequence(each, "classify") for each in PROMPTS]), pairs)
    change_config(folder, is_original_qwen3_reranker=True)
    engine, info, _ = build_pooling(
        folder, json.loads((folder / "config.json").read_text()), ModelOptions(model=str(folder)),
        engine_options(dtype="float32"),
    )  # fmt: skip
    assert info.pooling is not None
    assert info.pooling.is_cross_encoder
    engine.add(1, PoolingRequest("r", tuple(PoolingInput(each) for each in PROMPTS)))
    (delta,) = engine.step()
    found = [torch.frombuffer(bytearray(output.data), dtype=torch.float32) for output in delta.pooled]
    torch.testing.assert_close(torch.cat(found), torch.stack(pairs).softmax(-1)[:, 1], atol=1e-4, rtol=1e-4)


def test_a_token_that_is_none(tmp_path: Path) -> None:
    folder = make_pooled(tmp_path, "qwen3", "ForCausalLM")
    add_tokenizer(folder)
    change_config(folder, classifier_from_token=["<3>", "nein"])
    config = json.loads((folder / "config.json").read_text())
    with pytest.raises(StartupError, match="no token 'nein'"):
        build_pooling(folder, config, ModelOptions(model=str(folder)), engine_options(runner="pooling"))


def test_late_interaction(tmp_path: Path) -> None:
    folder = make_pooled(tmp_path, "bert", "Model")
    hidden = reference(folder, PROMPTS, transformers.AutoModel)
    projection = torch.randn(24, 64)
    change_weights(folder, lambda tensors: {f"bert.{name}": each for name, each in tensors.items()} | {
        "linear.weight": projection
    })  # fmt: skip
    change_config(folder, architectures=["HF_ColBERT"], dim=24)
    expected = [torch.nn.functional.normalize(each @ projection.T, dim=-1) for each in hidden]
    runner = runner_of(folder)
    assert pooling_of(runner).token_embedding_size == 24
    close(run(runner, [sequence(each, "token_embed", normalize=True) for each in PROMPTS]), expected)


@pytest.mark.parametrize("mode", ["cls", "mean", "lasttoken"])
def test_folders_of_sentence_transformers(tmp_path: Path, mode: str) -> None:
    """Covers a dense layer after pooling, and embeddings normalized to length 1."""
    # Imported here, not in every process that collects these tests: it takes seconds.
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer

    plain, folder = make_pooled(tmp_path / "plain", "bert", "Model"), tmp_path / "model"
    add_tokenizer(plain)
    torch.manual_seed(1)
    modules = [Transformer(str(plain), max_seq_length=64), Pooling(64, pooling_mode=mode), Dense(64, 24), Normalize()]
    theirs = SentenceTransformer(modules=modules, device="cpu")
    theirs.save(str(folder))
    prompts = [each for each in PROMPTS if len(each) <= 64]
    expected = theirs.encode([text_of(each) for each in prompts], convert_to_tensor=True)
    runner = runner_of(folder)
    assert (pooling_of(runner).embedding_size, runner.spec().max_model_len) == (24, 64)
    found = run(runner, [sequence(each, "embed", normalize=True) for each in prompts])
    torch.testing.assert_close(torch.stack(found), expected, atol=1e-5, rtol=1e-5)


def test_a_cross_encoder_of_sentence_transformers(tmp_path: Path) -> None:
    from sentence_transformers import CrossEncoder

    folder = make_pooled(tmp_path, "bert", "ForSequenceClassification", num_labels=1)
    add_tokenizer(folder)
    theirs = CrossEncoder(str(folder), device="cpu")
    expected = theirs.predict([(text_of(each), "<4> <5>") for each in PROMPTS], convert_to_tensor=True)
    encoded = [theirs.tokenizer(text_of(each), "<4> <5>") for each in PROMPTS]
    sequences = [
        sequence(each["input_ids"], "classify", each.get("token_type_ids", ()), use_activation=True) for each in encoded
    ]
    found = run(runner_of(folder), sequences)
    torch.testing.assert_close(torch.cat(found), expected, atol=1e-5, rtol=1e-5)


def test_shorter_embeddings(tmp_path: Path) -> None:
    folder = make_pooled(tmp_path, "bert", "Model")
    runner = runner_of(folder)
    (whole,) = run(runner, [sequence(PROMPTS[3], "embed")])
    (cut,) = run(runner, [sequence(PROMPTS[3], "embed", dimensions=10, normalize=True)])
    torch.testing.assert_close(cut, torch.nn.functional.normalize(whole[:10], dim=-1))


def test_nomics_own_layout(tmp_path: Path) -> None:
    folder = make_pooled(tmp_path, "nomic-bert", "Model")
    hidden = reference(folder, PROMPTS, transformers.AutoModel)
    theirs = {
        "n_embd": 64, "n_head": 4, "n_layer": 3, "n_inner": 96, "n_positions": 200, "activation_function": "swiglu",
        "rotary_emb_base": 1000, "layer_norm_epsilon": 1e-12, "rotary_emb_fraction": 1.0, "prenorm": False,
    }  # fmt: skip
    file = folder / "config.json"
    file.write_text(
        json.dumps({"architectures": ["NomicBertModel"], "vocab_size": VOCAB_SIZE, "type_vocab_size": 2, **theirs})
    )
    close(run(runner_of(folder), [sequence(each, "token_embed") for each in PROMPTS]), hidden)
    change_config(folder, prenorm=True)
    with pytest.raises(StartupError, match="prenorm is True"):
        runner_of(folder)


def test_gtes_own_layout(tmp_path: Path) -> None:
    """GTE's own layout has gate and up matrices in one tensor, up first."""
    folder = make_pooled(tmp_path, "gte", "Model")
    hidden = reference(folder, PROMPTS, transformers.AutoModel)

    def theirs(tensors: Tensors) -> Tensors:
        found = {f"new.{name.removeprefix('gte.')}": each for name, each in tensors.items()}
        for name in [name for name in found if ".gate_proj." in name]:
            up = found.pop(name.replace(".gate_proj.", ".up_proj."))
            found[name.replace(".gate_proj.", ".up_gate_proj.")] = torch.cat((up, found.pop(name)))
        return found

    change_weights(folder, theirs)
    assert any("up_gate_proj" in name for name in load_file(folder / "model.safetensors"))
    config = json.loads((folder / "config.json").read_text())
    theta = (config.get("rope_parameters") or {}).get("rope_theta", 160_000.0)
    change_config(folder, architectures=["NewModel"], model_type="new", rope_parameters=None, rope_theta=theta)
    close(run(runner_of(folder), [sequence(each, "token_embed") for each in PROMPTS]), hidden)


def test_gemmas_windows_reach_to_both_sides(tmp_path: Path) -> None:
    """EmbeddingGemma's configuration gives the size of the whole window, of which half is on each side."""
    folder = make_pooled(tmp_path, "gemma3", "Model")
    change_config(folder, use_bidirectional_attention=True)
    hidden = reference(folder, PROMPTS, transformers.AutoModel)
    close(run(runner_of(folder), [sequence(each, "token_embed") for each in PROMPTS]), hidden)


def test_a_decoder_that_sees_both_ways(tmp_path: Path) -> None:
    folder = make_pooled(tmp_path, "gemma2", "Model")
    one_way = run(runner_of(folder), [sequence(PROMPTS[4], "token_embed")])[0]
    change_config(folder, is_causal=False)
    both = run(runner_of(folder), [sequence(PROMPTS[4], "token_embed")])[0]
    assert not torch.allclose(one_way[0], both[0])


def test_weights_in_8_bits_are_near(tmp_path: Path) -> None:
    folder = make_pooled(tmp_path, "bert", "Model", hidden_size=128, intermediate_size=256)
    hidden = reference(folder, PROMPTS, transformers.AutoModel)
    found = run(runner_of(folder, quantization="int8"), [sequence(each, "embed") for each in PROMPTS])
    for own, other in zip(found, hidden, strict=True):
        assert torch.cosine_similarity(own, pool(other, "CLS"), dim=0) > 0.99


SHARED_STORAGE = {
    "kv_connector": "SharedStorageConnector", "kv_connector_extra_config": {"shared_storage_path": "/nowhere"}
}  # fmt: skip
REFUSED = {
    "stages": ({"pipeline_parallel_size": 2}, "--pipeline-parallel-size"),
    "ranks of one process": (
        {"tensor_parallel_size": 2, "distributed_executor_backend": "uni"},
        "--distributed-executor-backend uni",
    ),
    "ranks in turns": ({"max_parallel_loading_workers": 1}, "--max-parallel-loading-workers"),
    "executor": ({"distributed_executor_backend": "ray"}, "--distributed-executor-backend ray"),
    "class": ({"worker_cls": "package.Class"}, "--worker-cls"),
    "extension": ({"worker_extension_cls": "package.Class"}, "--worker-extension-cls"),
    "adapters": ({"enable_lora": True, "default_mm_loras": {"image": "/a"}}, "--default-mm-loras"),
    "routed experts": ({"enable_return_routed_experts": True}, "--enable-return-routed-experts"),
    "sampling masks": ({"return_sampling_mask": True}, "--return-sampling-mask"),
    "weights from a trainer": ({"weight_transfer_config": {"backend": "nccl"}}, "--weight-transfer-config"),
    "cache": ({"kv_cache_dtype": "fp8"}, "--kv-cache-dtype"),
    "host tier": ({"swap_space": 1.0}, "--swap-space"),
    "host memory": ({"kv_offloading_size": 1.0}, "--kv-offloading-size"),
    "transfer": ({"kv_transfer_config": SHARED_STORAGE}, "--kv-transfer-config"),
    "speculation": ({"speculative_config": {"method": "ngram"}}, "--speculative-config"),
    "transformers": ({"model_impl": "transformers"}, "--model-impl transformers"),
    "dimensions": ({"pooler_config": {"dimensions": 100}}, "embeddings have 64 values"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_options_that_do_not_go_with_pooling(tmp_path: Path, name: str) -> None:
    options, message = REFUSED[name]
    folder = make_pooled(tmp_path, "bert", "Model")
    config = json.loads((folder / "config.json").read_text())
    with pytest.raises(StartupError, match=message):
        build_pooling(folder, config, ModelOptions(model=str(folder)), engine_options(**options))


@pytest.mark.parametrize(
    ("architecture", "message"), [("DebertaV2Model", "not supported"), ("MambaModel", "recurrent|not supported")]
)
def test_models_that_are_not_built(tmp_path: Path, architecture: str, message: str) -> None:
    folder = make_pooled(tmp_path, "bert", "Model")
    change_config(folder, architectures=[architecture])
    with pytest.raises(StartupError, match=message):
        runner_of(folder)


@pytest.mark.parametrize("make", [make_deepseek_v4, lambda folder: make_model(folder, "minimax-m3")])
def test_compressed_and_sparse_attention(tmp_path: Path, make: Callable[[Path], object]) -> None:
    make(tmp_path)
    with pytest.raises(StartupError, match="compressed or sparse attention, are not supported for pooling"):
        runner_of(tmp_path)
