"""InternVL as OpenGVLab publishes it answers like the same model in Transformers' layout."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from safetensors.torch import load_file, save_file

from engine_svc.config_formats.registry import read_model_config
from engine_svc.requests.request import GenerationRequest
from quire.errors import StartupError
from quire.options.model_form import ModelFormOptions
from tests.support.remote_code import INTERNLM_NAMES, Tensors, packed, renamed
from tests.support.run_engine import run_requests, running_engine, spec_of, tokens
from tests.support.vision_models import FAMILIES, make_vision_model, random_frames, random_image, reference_generate
from tests.support.vision_models.conversations import GREEDY_DOZEN, ask
from tests.support.vision_models.family import TEXT, VISION
from tests.support.vision_models.prompts import request_of

MEAN, DEVIATION = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
# One tile, several and a small copy of the whole, and none.
QUESTIONS = (("Look: ", random_image(30, 28, 1), "What is it?"), (random_image(90, 40, 2),), ("Only text.",))
VIDEO, FRAMES = [{"role": "user", "content": [{"type": "video"}]}], random_frames(60, 40, 3, 4)
NAMES = (
    (r"^multi_modal_projector\.layer_norm\.", "mlp1.0."), (r"^multi_modal_projector\.linear_1\.", "mlp1.1."),
    (r"^multi_modal_projector\.linear_2\.", "mlp1.3."), (r"^vision_tower\.", "vision_model."),
    (r"\.cls_token$", ".class_embedding"), (r"\.position_embeddings$", ".position_embedding"),
    (r"\.patch_embeddings\.projection\.", ".patch_embedding."), (r"\.encoder\.layer\.", ".encoder.layers."),
    (r"\.lambda_(\d)$", r".ls\1"), (r"\.layernorm_before\.", ".norm1."), (r"\.layernorm_after\.", ".norm2."),
    (r"^(vision_model\..*)\.attention\.projection_layer\.", r"\1.attn.proj."),
    (r"^(vision_model\..*)\.attention\.", r"\1.attn."),
)  # fmt: skip
INTERNLM = ((r"^lm_head\.", "language_model.lm_head."), (r"\blm_head\.", "output."), *INTERNLM_NAMES)

# What counts of InternVL 3's configuration here.
PUBLISHED: dict[str, Any] = {
    "architectures": ["InternVLChatModel"], "llm_config": {"model_type": "qwen2", "eos_token_id": 151643},
    "vision_config": {"image_size": 448}, "force_image_size": 448, "ps_version": "v2",
}  # fmt: skip


class Kind(NamedTuple):
    """A combination of text model and encoder; what differs from the first one."""

    text: dict[str, Any]
    vision: dict[str, Any]
    architecture: str
    template: str = "<IMG_CONTEXT>"  # what it writes for an image


KINDS = {
    "qwen2-tied": Kind({"model_type": "qwen2", "tie_word_embeddings": True}, {}, "Qwen2ForCausalLM"),
    "qwen3-6b": Kind(
        {"model_type": "qwen3"}, {"norm_type": "rms_norm", "use_qk_norm": True, "attention_bias": True},
        "Qwen3ForCausalLM", "<image>",
    ),
    "internlm2": Kind({"model_type": "llama"}, {}, "InternLM2ForCausalLM"),
}  # fmt: skip


class Folders(NamedTuple):
    published: Path
    plain: Path


@pytest.fixture(scope="module", params=KINDS)
def folders(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Folders:
    kind, to = KINDS[request.param], tmp_path_factory.mktemp("internvl")
    family, is_tied = FAMILIES["internvl"], kind.text.get("tie_word_embeddings", False)
    made = dataclasses.replace(
        family, text=TEXT | kind.text, vision=VISION | kind.vision,
        config={**family.config, "tie_word_embeddings": is_tied},
        image_fields={**family.image_fields, "image_mean": MEAN, "image_std": DEVIATION},
        video_fields={**family.video_fields, "image_mean": MEAN, "image_std": DEVIATION},
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(FAMILIES, "published", made)
        plain = make_vision_model(to / "plain", "published")
    return Folders(_publish(plain, to / "published", kind), plain)


def _publish(plain: Path, to: Path, kind: Kind) -> Path:
    shutil.copytree(plain, to)
    tensors = load_file(plain / "model.safetensors")
    text = {name: tensor for name, tensor in tensors.items() if name.startswith(("language_model.", "lm_head."))}
    if kind.architecture == "InternLM2ForCausalLM":
        text = {renamed(name, INTERNLM): tensor for name, tensor in packed(text, TEXT["num_key_value_heads"]).items()}
    else:
        text = {re.sub("^lm_head", "language_model.lm_head", name): tensor for name, tensor in text.items()}
    encoder: Tensors = {name: tensor for name, tensor in tensors.items() if name.startswith(("vision", "multi"))}
    encoder = {renamed(name, NAMES): tensor for name, tensor in packed(encoder, 1).items()}
    save_file({name: each.contiguous() for name, each in (text | encoder).items()}, to / "model.safetensors")
    (to / "config.json").write_text(json.dumps(_config(json.loads((plain / "config.json").read_text()), kind)))
    for name in ("processor_config.json", "video_preprocessor_config.json"):
        (to / name).unlink()
    # As in OpenGVLab's repositories; nothing in it is true of the model but the numbers for colors.
    settings = {"feature_extractor_type": "CLIPFeatureExtractor", "size": 448, "crop_size": 448, "do_center_crop": True}
    (to / "preprocessor_config.json").write_text(json.dumps(settings | {"image_mean": MEAN, "image_std": DEVIATION}))
    file = to / "chat_template.jinja"
    file.write_text(file.read_text().replace("<IMG_CONTEXT>", kind.template))
    return to


def _config(plain: dict[str, Any], kind: Kind) -> dict[str, Any]:
    """As published."""
    vision = plain["vision_config"]
    own = {name: vision[name] for name in ("hidden_act", "norm_type", "layer_norm_eps", "num_channels", *VISION)}
    own |= {"model_type": "intern_vit_6b", "image_size": VISION["image_size"], "patch_size": VISION["patch_size"]}
    own |= {"qkv_bias": vision["attention_bias"], "qk_normalization": vision["use_qk_norm"], "drop_path_rate": 0.1}
    text = plain["text_config"] | {"architectures": [kind.architecture], "torch_dtype": "float32", "eos_token_id": 0}
    if kind.architecture == "InternLM2ForCausalLM":
        text |= {"model_type": "internlm2", "bias": False, "auto_map": {"AutoConfig": "configuration_internlm2.X"}}
    return {
        "architectures": ["InternVLChatModel"], "model_type": "internvl_chat", "torch_dtype": "float32",
        "auto_map": {"AutoModel": "modeling_internvl_chat.InternVLChatModel"}, "llm_config": text, "vision_config": own,
        "downsample_ratio": 0.5, "dynamic_image_size": True, "force_image_size": own["image_size"],
        "min_dynamic_patch": 1, "max_dynamic_patch": 4, "use_thumbnail": True, "ps_version": "v2", "select_layer": -1,
        "pad2square": False, "template": "internvl2_5", "use_backbone_lora": 0, "use_llm_lora": 0,
    }  # fmt: skip


def _request(folder: Path) -> GenerationRequest:
    return request_of(folder, VIDEO, [], GREEDY_DOZEN, videos=[FRAMES])


def test_answers(folders: Folders) -> None:
    published, plain = ([*(ask(folder, *parts) for parts in QUESTIONS), _request(folder)] for folder in folders)
    assert [each.prompt_token_ids for each in published] == [each.prompt_token_ids for each in plain]
    expected = [reference_generate(folders.plain, *_told(parts), 12)[1] for parts in QUESTIONS]
    expected.append(reference_generate(folders.plain, VIDEO, [], 12, videos=[FRAMES])[1])
    with running_engine(folders.published, max_num_batched_tokens=13, max_num_seqs=4) as engine:
        assert tokens(run_requests(engine, published)) == expected


def _told(parts: Any) -> tuple[list[dict[str, Any]], list[Any]]:
    content = [{"type": "text", "text": each} if isinstance(each, str) else {"type": "image"} for each in parts]
    return [{"role": "user", "content": content}], [each for each in parts if not isinstance(each, str)]


def test_text_alone(folders: Folders) -> None:
    assert not spec_of(folders.published, limit_mm_per_prompt="image=0,video=0").accepts_images


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"ps_version": "v1"}, "ps_version 'v1'; only 'v2'"), ({"ps_version": None}, "ps_version 'v1'; only 'v2'"),
        ({"force_image_size": 224}, "force_image_size 224; only 448"), ({"use_llm_lora": 8}, "use_llm_lora 8; only 0"),
        ({"llm_config": None}, "invalid value"),
    ],
)  # fmt: skip
def test_what_is_refused(tmp_path: Path, changes: dict[str, Any], problem: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED | changes))
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<IMG_CONTEXT>": 9}))
    with pytest.raises(StartupError, match=problem):
        read_model_config(tmp_path, ModelFormOptions())


def test_ids_of_tokens(tmp_path: Path) -> None:
    """Without tokenizer.json, as published."""
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED))
    with pytest.raises(StartupError, match="no id of <IMG_CONTEXT>"):
        read_model_config(tmp_path, ModelFormOptions())
    decoder = {"7": {"content": "<IMG_CONTEXT>", "special": True}, "8": {"content": "<|im_end|>", "special": True}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": decoder}))
    found = read_model_config(tmp_path, ModelFormOptions())
    assert (found["image_token_id"], found["text_config"]["eos_token_id"]) == (7, [8])
    (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<IMG_CONTEXT>": 9}))
    assert read_model_config(tmp_path, ModelFormOptions())["image_token_id"] == 9
