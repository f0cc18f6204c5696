"""Features of images that are added between the text model's layers, and images of several tiles, encoded in parts."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from engine_svc.media import encoder
from engine_svc.media.encoder import ImageEncoder
from engine_svc.media.encoder_model import load_encoder
from engine_svc.media.unfit import UnfitImage
from engine_svc.models.registry import config_for, text_part
from quire.errors import StartupError
from quire.media import MediaKind
from tests.engine_svc.media.conftest import VisionFolder
from tests.support.run_engine import GREEDY, run_requests, running_engine, tokens
from tests.support.vision_models import FAMILIES, make_vision_model, random_image, reference_generate
from tests.support.vision_models.conversations import answer, ask, with_inputs
from tests.support.vision_models.prompts import request_of

WIDE = random_image(60, 40, 1)
QUESTION = ("Look: ", WIDE, "What is it?")
IMAGES = frozenset({MediaKind.IMAGE})
MESSAGES = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is it?"}]}]


def configuration(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return found


def encoder_of(folder: Path) -> ImageEncoder:
    model = load_encoder(folder, configuration(folder), torch.float32, torch.device("cpu"), None)
    return ImageEncoder(model, IMAGES, torch.float32, torch.device("cpu"))


def test_layers_that_a_configuration_leaves_out(vision_folder: VisionFolder) -> None:
    """They are those of the published model, as Transformers has them."""
    config = configuration(vision_folder("granite4_vision"))
    assert config_for(text_part(config)).feature_layers == (3, 0, 1, 2, 4, 5)
    del config["spatial_target_layers"]
    config["text_config"]["num_hidden_layers"] = 22
    assert config_for(text_part(config)).feature_layers == (3, 0, 12, 15, 18, 21)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"deepstack_layer_map": None}, "at least one pair of layers"),
        ({"deepstack_layer_map": []}, "at least one pair of layers"),
        ({"deepstack_layer_map": [[1, 3], [2, 3]]}, "all of them different"),
        ({"deepstack_layer_map": [[1, 4]]}, "all of them different"),
        ({"spatial_target_layers": [1, 2, 4, 5, 6]}, "up to 4 layers"),
        ({"spatial_target_layers": [1, 6]}, "before layers (3, 0, 1, 6), but the model has 6"),
        ({"deepstack_layer_map": [[0, -1]]}, "before layers (-1, "),
        ({"deepstack_layer_map": [1]}, "Transformers does not accept"),
    ],
    ids=str,
)
def test_layers_that_make_no_sense(vision_folder: VisionFolder, changed: Mapping[str, Any], words: str) -> None:
    with pytest.raises(StartupError) as caught:
        text_part(configuration(vision_folder("granite4_vision")) | changed)
    assert words in str(caught.value)


def test_a_request_may_choose_more_tokens(vision_folder: VisionFolder) -> None:
    """Granite for Docling's fine route, beside an image without it."""
    folder, sampling = vision_folder("granite_docling"), replace(GREEDY, max_tokens=12)
    fine = request_of(folder, MESSAGES, [WIDE], sampling, {"fine_route": True})
    coarse = request_of(folder, MESSAGES, [WIDE], sampling)
    (token,) = encoder_of(folder).token_ids or ()
    assert fine.prompt_token_ids.count(token) == 4 * coarse.prompt_token_ids.count(token) > 0
    chosen: tuple[dict[str, Any], ...] = ({"fine_route": True}, {})
    expected = [reference_generate(folder, MESSAGES, [WIDE], 12, settings=settings) for settings in chosen]
    assert [fine.prompt_token_ids, coarse.prompt_token_ids] == [prompt for prompt, _ in expected]
    with running_engine(folder, max_num_batched_tokens=13, max_num_seqs=4) as engine:
        assert tokens(run_requests(engine, [fine, coarse])) == [answer for _, answer in expected]


def test_more_tokens_of_a_model_that_has_no_such_route(vision_folder: VisionFolder, tmp_path: Path) -> None:
    """As the large one is published."""
    folder = shutil.copytree(vision_folder("granite_docling"), tmp_path / "model")
    config = configuration(folder)
    config["vision_config"]["use_fine_route"], config["density_router_hidden_size"] = False, None
    (folder / "config.json").write_text(json.dumps(config))
    own, image = encoder_of(folder), ask(vision_folder("granite_docling"), *QUESTION)
    assert own.encode(image.images[0]).deep is not None
    with pytest.raises(UnfitImage, match="for models with a fine route only"):
        own.encode(with_inputs(image, tile_fine_mask=np.ones(1, np.bool_)).images[0])


def test_images_that_merge_patches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """VideoLLaMA 3's image processor says how many; for still images, published ones merge none."""
    kind = FAMILIES["video_llama3"]
    merging = dataclasses.replace(kind, image_fields=kind.image_fields | {"merge_size": 2})
    monkeypatch.setitem(FAMILIES, "merging", merging)
    folder = make_vision_model(tmp_path, "merging")
    with running_engine(folder, max_num_batched_tokens=7, max_num_seqs=4) as engine:
        assert tokens(run_requests(engine, [ask(folder, *QUESTION)])) == [answer(folder, *QUESTION)]


def test_tiles_are_encoded_in_parts(vision_folder: VisionFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that memory stays bounded. The tiles of these models do not attend to each other."""
    for family in ("internvl", "aya_vision"):
        folder = vision_folder(family)
        own, image = encoder_of(folder), ask(folder, *QUESTION).images[0]
        together = own.encode(image).embeddings
        counts: list[int] = []
        encode = own._model.get_image_features

        def noted(pixel_values: torch.Tensor, encode: Any = encode, counts: list[int] = counts) -> Any:
            counts.append(len(pixel_values))
            return encode(pixel_values)

        monkeypatch.setattr(own._model, "get_image_features", noted)
        monkeypatch.setattr(encoder, "_MOST_PIXELS", 3 * 28 * 28)
        assert torch.allclose(own.encode(image).embeddings, together, atol=1e-5, rtol=1e-5)
        assert counts == [3, 2]
        monkeypatch.undo()
