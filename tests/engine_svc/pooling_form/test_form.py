"""What a model is served for, given its configuration, its files and the options."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine_svc.pooling_form.architecture import architecture_of, is_pooling
from engine_svc.pooling_form.form import PoolingForm, pooling_form
from engine_svc.pooling_form.sentence_transformers import read_sentence_transformers
from quire.errors import StartupError
from quire.options.pooling import PoolerConfig, PoolingOptions

_MODULES = "sentence_transformers.models"


def form_of(folder: Path, architecture: str, options: PoolingOptions = PoolingOptions(), **config: Any) -> PoolingForm:
    return pooling_form({"architectures": [architecture], **config}, folder, options)


def write_modules(folder: Path, *kinds: str, **files: Any) -> Path:
    """Writes a sentence-transformers folder; `files` are named without .json and with __ for /."""
    modules = [{"type": f"{_MODULES}.{kind}", "path": f"{place}_{kind}" if place else ""}
               for place, kind in enumerate(kinds)]  # fmt: skip
    (folder / "modules.json").write_text(json.dumps(modules))
    for name, content in files.items():
        place = folder / f"{name.replace('__', '/')}.json"
        place.parent.mkdir(exist_ok=True)
        place.write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize(
    ("name", "family", "kind"),
    [
        ("BertModel", "Bert", "base"),
        ("Gemma3TextForSequenceClassification", "Gemma3", "SequenceClassification"),
        ("XLMRobertaForMaskedLM", "XLMRoberta", "base"),
        ("Qwen3ForCausalLM", "Qwen3", "CausalLM"),
        ("Gemma3TextModel", "Gemma3", "base"),
        ("ModernBertForTokenClassification", "ModernBert", "TokenClassification"),
        ("Qwen2ForProcessRewardModel", "Qwen2", "ProcessRewardModel"),
        ("Qwen2ForRewardModel", "Qwen2", "RewardModel"),
        ("HF_ColBERT", "Bert", "ColBERT"),
        ("ChatGLMModel", "ChatGLM", "CausalLM"),
    ],
)
def test_architectures_are_taken_apart(name: str, family: str, kind: str) -> None:
    found = architecture_of({"architectures": [name]})
    assert found is not None
    assert (found.family, found.kind) == (family, kind)


def test_which_models_pool(tmp_path: Path) -> None:
    generates, embeds = {"architectures": ["Qwen3ForCausalLM"]}, {"architectures": ["Qwen3Model"]}
    auto = PoolingOptions()
    assert not is_pooling(generates, tmp_path, auto)
    assert not is_pooling({}, tmp_path, auto)
    assert is_pooling(embeds, tmp_path, auto)
    assert not is_pooling(embeds, tmp_path, PoolingOptions(runner="generate"))
    assert is_pooling(generates, tmp_path, PoolingOptions(runner="pooling"))
    assert is_pooling(generates, tmp_path, PoolingOptions(convert="classify"))
    assert is_pooling(generates, write_modules(tmp_path, "Transformer", "Pooling"), auto)


def test_tasks_and_defaults(tmp_path: Path) -> None:
    assert form_of(tmp_path, "BertModel").tasks == ("embed", "token_embed")
    assert form_of(tmp_path, "BertModel").normalize
    classes = form_of(tmp_path, "BertForSequenceClassification", id2label={"0": "bad", "1": "good"})
    assert (classes.tasks, classes.num_labels, classes.label_names) == (("classify",), 2, ("bad", "good"))
    assert (classes.activation, classes.is_cross_encoder) == ("softmax", False)
    scores = form_of(tmp_path, "BertForSequenceClassification", id2label={"0": "LABEL_0"})
    assert (scores.activation, scores.is_cross_encoder) == ("sigmoid", True)
    reward = form_of(tmp_path, "Qwen2ForRewardModel")
    assert (reward.tasks, reward.num_labels, reward.use_activation) == (("token_classify",), 1, False)
    steps = form_of(tmp_path, "Qwen2ForProcessRewardModel", PoolingOptions(pooler_config={"step_tag_id": 7}))
    assert (steps.is_by_steps, steps.num_labels, steps.use_activation) == (True, 2, True)
    assert form_of(tmp_path, "HF_ColBERT").is_late_interaction


@pytest.mark.parametrize(
    ("config", "activation"),
    [
        ({"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, "identity"),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}}, "sigmoid"),
        ({"problem_type": "multi_label_classification"}, "sigmoid"),
        ({"problem_type": "regression"}, "identity"),
        ({"num_labels": 5}, "softmax"),
    ],
)
def test_activations(tmp_path: Path, config: dict[str, Any], activation: str) -> None:
    assert form_of(tmp_path, "BertForSequenceClassification", **{"num_labels": 3} | config).activation == activation


def test_files_of_sentence_transformers(tmp_path: Path) -> None:
    dense = {"in_features": 64, "out_features": 32, "bias": True, "activation_function": "torch.nn.Tanh"}
    write_modules(
        tmp_path, "Transformer", "Pooling", "Dense", "Normalize", **{
            "1_Pooling__config": {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False},
            "2_Dense__config": dense, "sentence_bert_config": {"max_seq_length": 77},
            "config_sentence_transformers": {"prompts": {"query": "q: "}, "default_prompt_name": "query"},
        },
    )  # fmt: skip
    found = form_of(tmp_path, "Qwen3ForCausalLM")
    assert (found.sequence_pooling, found.normalize, found.max_length) == ("MEAN", True, 77)
    assert (found.dense[0].outputs, found.dense[0].activation) == (32, "Tanh")
    assert (found.prompts, found.default_prompt_name) == ({"query": "q: "}, "query")
    given = PoolingOptions(pooler_config={"pooling_type": "cls", "normalize": False})
    changed = form_of(tmp_path, "BertModel", given)
    assert (changed.sequence_pooling, changed.normalize) == ("CLS", False)


def test_without_a_normalizing_module_nothing_is_normalized(tmp_path: Path) -> None:
    write_modules(tmp_path, "Transformer", "Pooling", **{"1_Pooling__config": {"pooling_mode": "lasttoken"}})
    found = form_of(tmp_path, "BertModel")
    assert (found.sequence_pooling, found.normalize) == ("LAST", False)


def test_a_layer_on_tokens_is_late_interaction(tmp_path: Path) -> None:
    write_modules(tmp_path, "Transformer", "Dense", **{"1_Dense__config": {"in_features": 4, "out_features": 2}})
    assert form_of(tmp_path, "ModernBertModel").tasks == ("token_embed",)


def test_a_layer_that_names_no_activation_has_that_of_its_library(tmp_path: Path) -> None:
    sizes = {"in_features": 4, "out_features": 2}
    folder = write_modules(tmp_path, "Transformer", "Pooling", "Dense", **_MEAN, **{"2_Dense__config": sizes})
    assert form_of(folder, "BertModel").dense[0].activation == "Tanh"
    modules = [{"type": "pylate.models.Dense", "path": "2_Dense"}]
    (folder / "modules.json").write_text(json.dumps(modules))
    assert form_of(folder, "BertModel").dense[0].activation == "Identity"


def test_matryoshka(tmp_path: Path) -> None:
    assert not form_of(tmp_path, "BertModel").is_matryoshka
    assert form_of(tmp_path, "BertModel", is_matryoshka=True).is_matryoshka
    assert form_of(tmp_path, "BertModel", matryoshka_dimensions=[32, 64]).matryoshka_dimensions == (32, 64)


_MEAN: dict[str, Any] = {"1_Pooling__config": {"pooling_mode": "mean"}}
BROKEN: dict[str, tuple[list[str], dict[str, Any], str]] = {
    "maximum": (["Transformer", "Pooling"], {"1_Pooling__config": {"pooling_mode_max_tokens": True}}, "by max"),
    "both": (
        ["Transformer", "Pooling"],
        {"1_Pooling__config": {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}}, "CLS and MEAN",
    ),
    "module": (["Transformer", "WeightedLayerPooling"], {}, "WeightedLayerPooling' is not supported"),
    "sizes": (["Transformer", "Dense"], {"1_Dense__config": {}}, "lacks in_features"),
    "activation": (
        ["Transformer", "Dense"],
        {"1_Dense__config": {"in_features": 1, "out_features": 1, "activation_function": "torch.nn.Softplus"}},
        "Softplus is not supported",
    ),
    "residual": (
        ["Transformer", "Pooling", "Dense"], _MEAN | {"2_Dense__config": {"use_residual": True}}, "use_residual",
    ),
    "tokens": (
        ["Transformer", "Pooling", "Dense"], _MEAN | {"2_Dense__config": {"module_input_name": "token_embeddings"}},
        "module_input_name is 'token_embeddings'",
    ),
    "before pooling": (
        ["Transformer", "Dense", "Pooling"],
        {"1_Dense__config": {"in_features": 1, "out_features": 1}, "2_Pooling__config": {"pooling_mode": "mean"}},
        "order Transformer, Dense, Pooling",
    ),
    "behind the norm": (
        ["Transformer", "Pooling", "Normalize", "Dense"],
        _MEAN | {"3_Dense__config": {"in_features": 1, "out_features": 1}}, "order .*Normalize, Dense is not supported",
    ),
    "prompts": (["Transformer"], {"config_sentence_transformers": {"prompts": {"query": 3}}}, "must map names"),
    "prompts that are not pooled": (
        ["Transformer", "Pooling"],
        {"1_Pooling__config": {"pooling_mode": "mean", "include_prompt": False},
         "config_sentence_transformers": {"prompts": {"query": "q: "}}}, "include_prompt is false",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_not_built_is_refused_by_name(tmp_path: Path, name: str) -> None:
    kinds, files, message = BROKEN[name]
    with pytest.raises(StartupError, match=message):
        read_sentence_transformers(write_modules(tmp_path, *kinds, **files))


def test_no_module_leads_out_of_the_folder(tmp_path: Path) -> None:
    modules = [{"type": f"{_MODULES}.Dense", "path": "../other"}]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(StartupError, match="leads out of the folder"):
        read_sentence_transformers(tmp_path)


WRONG: dict[str, tuple[str, PoolingOptions, dict[str, Any], str]] = {
    "nothing said": ("Unknown", PoolingOptions(runner="pooling"), {}, "does not tell what the model is for"),
    "none": ("Qwen3ForCausalLM", PoolingOptions(runner="pooling", convert="none"), {}, "generates text"),
    "no classes": ("Qwen3ForCausalLM", PoolingOptions(convert="classify"), {}, "classifier_from_token"),
    "task": ("BertModel", PoolingOptions(pooler_config={"task": "classify"}), {}, "not supported by this model"),
    "step": ("BertModel", PoolingOptions(pooler_config={"pooling_type": "STEP"}), {}, "classify tokens"),
    "labels": ("BertForSequenceClassification", PoolingOptions(), {"num_labels": "x"}, "num_labels is 'x'"),
    "label": (
        "BertForTokenClassification", PoolingOptions(pooler_config={"returned_token_ids": [5]}), {"num_labels": 3},
        "has 5, but the model has 3 classes",
    ),
    "function": (
        "BertForSequenceClassification", PoolingOptions(), {"sbert_ce_default_activation_function": "torch.nn.GELU"},
        "GELU is not supported",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_served_is_told(tmp_path: Path, name: str) -> None:
    architecture, options, config, message = WRONG[name]
    with pytest.raises(StartupError, match=message):
        form_of(tmp_path, architecture, options, **config)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"pooling_type": "max"}, "'max' does not exist"),
        ({"enable_chunked_processing": True}, "not supported"),
        ({"max_embed_len": 10}, "not supported"),
        ({"softmax": True, "activation": False}, "but their values differ"),
    ],
)
def test_pooler_configs_that_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PoolerConfig(**given)


def test_names_of_a_pooler_config() -> None:
    assert PoolerConfig(pooling_type="mean").sequence_pooling == "MEAN"
    assert PoolerConfig(pooling_type="mean").token_pooling is None
    assert PoolerConfig(pooling_type="all", seq_pooling_type="cls").sequence_pooling == "CLS"
    assert PoolerConfig(softmax=False).activates is False
