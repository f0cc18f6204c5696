"""Images with marks of their own, such as ends of rows or tokens with learned embeddings, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from engine_svc.media import encoder
from engine_svc.media.encoder_model import load_encoder
from engine_svc.media.rotary_positions import PlacedGrid, rotary_positions
from engine_svc.models.registry import config_for, text_part
from quire.errors import StartupError
from quire.images import PIXELS
from tests.engine_svc.media.conftest import VisionFolder
from tests.engine_svc.media.test_faults import (
    ANY_FAMILY,
    Fault,
    before_its_tokens,
    check_faults,
    fewer_tokens,
    grid,
    inputs,
    pixels,
    split_by_text,
)
from tests.support.run_engine import run_requests, running_engine, tokens
from tests.support.vision_models import random_image
from tests.support.vision_models.conversations import answer, ask

QUESTION = ("Look: ", random_image(60, 40, 1), "What is it?")
BYTES = np.ones((3, 2), np.uint8)


def sizes(*tiles: tuple[int, ...]) -> Fault:
    """Other sizes of MiniCPM-V's three tiles of 8 x 8 patches."""
    return inputs(target_sizes=np.array(tiles, np.int64))


def marks(*given: int) -> Fault:
    """Other marks of Ovis 2's image, which has five tiles of four embeddings."""
    return inputs(marks=np.array(given, np.int64))


def tiles(count: int, *shape: int) -> Fault:
    """Tiles of DeepSeek-OCR's image, which has none."""
    return inputs(num_local_patches=np.array([count]), pixel_values_local=np.zeros(shape, np.uint8))


FAULTS: dict[str, dict[str, tuple[Fault, str]]] = {
    "deepseek_ocr2": ANY_FAMILY | {
        "fewer tokens": (fewer_tokens, "145 embeddings for 144 tokens"),
        "another side": (pixels(1, 3, 64, 64), "257 embeddings for 145 tokens"),
        "an odd side": (pixels(1, 3, 56, 56), "takes [1, 3, side, side] with (48, 64) pixels"),
        "a view that would take gigabytes": (pixels(1, 3, 1024, 1024), "with (48, 64) pixels"),
        "not square": (pixels(1, 3, 48, 64), "with (48, 64) pixels"),
        "gray": (pixels(1, 1, 48, 48), "with (48, 64) pixels"),
        "two images": (pixels(2, 3, 48, 48), "takes [1, 3, side, side]"),
        "an image alone": (pixels(3, 48, 48), "takes [1, 3, side, side]"),
        "tiles": (tiles(2, 2, 3, 64, 64), "657 embeddings for 145 tokens"),
        "tiles of another size": (tiles(2, 2, 3, 128, 128), "takes [tiles, 3, side, side] with (48, 64) pixels"),
        "tiles in another number": (tiles(3, 2, 3, 64, 64), "is how many tiles pixel_values_local has"),
        "a number of no tiles": (inputs(num_local_patches=np.array([1])), "is how many tiles pixel_values_local has"),
        "two numbers": (inputs(num_local_patches=np.array([0, 0])), "takes int64 [1]"),
        "no number": (inputs(num_local_patches=None), "it needs num_local_patches, int64 [1]"),
    },
    "hunyuan_vl": ANY_FAMILY | {
        "fewer tokens": (fewer_tokens, "3 x 4 embeddings and the ends of rows do not fit 16 tokens"),
        "before its tokens": (before_its_tokens, "do not fit 0 tokens"),
        "split by text": (split_by_text, "other tokens between its own"),
        "the same number of patches": (grid(1, 8, 6), "4 x 3 embeddings and the ends of rows do not fit 17 tokens"),
        "a smaller grid": (grid(1, 2, 2), "the encoder takes [4, 147]"),
        "a grid that would take terabytes": (grid(1, 10**6, 10**6), "takes [1000000000000, 147]"),
        "a grid that overflows": (grid(2**40, 2**40, 2**40), "as image_grid_thw says"),
        "frames": (grid(2, 4, 6), "has 2 frames, but the model reads only still images"),
        "odd rows": (grid(1, 3, 16), "positive multiples of 2"),
        "no grid": (inputs(image_grid_thw=None), "it needs image_grid_thw"),
        "more patches": (pixels(52, 147), "the encoder takes [48, 147]"),
        "patches of another size": (pixels(48, 150), "the encoder takes [48, 147]"),
        "pixels instead of patches": (pixels(48, 3, 7, 7), "the encoder takes [48, 147]"),
        "pruned": (inputs(num_kept=np.array([12])), "num_kept is for models whose prompts have all"),
    },
    "minicpmv4_6": ANY_FAMILY | {
        "fewer tokens": (fewer_tokens, "12 embeddings for 11 tokens"),
        "before its tokens": (before_its_tokens, "12 embeddings for 0 tokens"),
        "no sizes": (inputs(target_sizes=None), "it needs target_sizes, int64 [tiles, 2]"),
        "sizes of bytes": (inputs(target_sizes=BYTES), "it needs target_sizes, int64 [tiles, 2]"),
        "a size alone": (inputs(target_sizes=np.array([8, 24])), "it needs target_sizes, int64 [tiles, 2]"),
        "three sides": (sizes((8, 8, 8)), "it needs target_sizes, int64 [tiles, 2]"),
        "odd columns": (sizes((8, 8), (8, 8), (32, 2)), "positive multiples of 4 rows and 4 columns"),
        "an empty tile": (sizes((8, 24), (0, 4)), "positive multiples of 4"),
        "negative sides": (sizes((-8, -24)), "positive multiples of 4"),
        "a tile that would take terabytes": (sizes((10**6, 10**6)), "takes [1, 3, 4, 4000000000000], as target_sizes"),
        "a tile that overflows": (sizes((2**62, 2**62)), "as target_sizes says"),
        "fewer tiles": (sizes((8, 8)), "takes [1, 3, 4, 256], as target_sizes says"),
        "whole pixels": (pixels(1, 3, 48, 64), "takes [1, 3, 4, 768], as target_sizes says"),
    },
    "ovis2": ANY_FAMILY | {
        "smaller": (pixels(5, 3, 14, 14), "takes […, 28, 28]"),
        "a patch that stands for all": (pixels(5, 3, 7, 7), "takes […, 28, 28]"),
        "gray": (pixels(5, 1, 28, 28), "for pixels with 1 color channels"),
        "no marks": (inputs(marks=None), "it needs marks, int64 [tokens]"),
        "marks of bytes": (inputs(marks=BYTES[0]), "it needs marks, int64 [tokens]"),
        "nested marks": (inputs(marks=np.array([[0]])), "it needs marks, int64 [tokens]"),
        "unknown marks": (marks(*[-1] * 20, 5), "must be from -1 to 4"),
        "negative marks": (marks(*[-1] * 20, -2), "must be from -1 to 4"),
        "more embeddings": (marks(*[-1] * 21), "-1 for 20 embeddings"),
        "fewer embeddings": (marks(*[-1] * 19, 0), "-1 for 20 embeddings"),
        "marks that would take gigabytes": (marks(*[-1] * 20, *[0] * 10**5), "100020 tokens; 5 tiles have 27 at most"),
        "fewer marks": (marks(*[-1] * 20, 0), "21 embeddings for 26 tokens"),
        "more tiles": (pixels(6, 3, 28, 28), "-1 for 24 embeddings"),
    },
}  # fmt: skip


@pytest.mark.parametrize("family", FAULTS)
def test_faults(vision_folder: VisionFolder, family: str) -> None:
    check_faults(vision_folder(family), FAULTS[family])


@pytest.mark.parametrize(("most", "counts"), [(16384, [3]), (128, [2, 1]), (64, [1, 1, 1]), (1, [1, 1, 1])])
def test_tiles_in_a_row_are_encoded_in_parts(
    vision_folder: VisionFolder, monkeypatch: pytest.MonkeyPatch, most: int, counts: list[int]
) -> None:
    split, found = encoder._parts, []

    def noted(given: Mapping[str, torch.Tensor], **options: Any) -> Iterator[Mapping[str, torch.Tensor]]:
        for part in split(given, **options):
            found.append(part[PIXELS].shape[-1] // 256)
            yield part

    monkeypatch.setattr(encoder, "_parts", noted)
    monkeypatch.setattr(encoder, "_MOST_PATCHES", most)
    folder = vision_folder("minicpmv4_6")
    with running_engine(folder) as engine:
        assert tokens(run_requests(engine, [ask(folder, *QUESTION)])) == [answer(folder, *QUESTION)]
    assert found == counts


@pytest.mark.parametrize("section", [[2, 2, 2, 2], [4, 2, 2]])
def test_positions_of_images_that_are_counted(section: list[int]) -> None:
    """HunYuan's: places of text, and of an image its columns, rows and number."""
    shapes = [(2, 3), (1, 1), (3, 2)]
    text = {
        "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": section},
    }  # fmt: skip
    with torch.device("meta"):
        model = transformers.AutoModel.from_config(transformers.HunYuanVLConfig(text_config=text))
    kinds, grids = [0] * 4, list[PlacedGrid]()
    for rows, columns in shapes:
        grids.append(PlacedGrid(len(kinds) + 1, 1, rows, columns + 1, num_positions=len(section)))
        kinds += [1] * (rows * (columns + 1) + 2) + [0] * 3
    expected, offset = model.get_rope_index(
        torch.zeros(1, len(kinds), dtype=torch.int64), mm_token_type_ids=torch.tensor([kinds]),
        image_grid_thw=torch.tensor([[1, 2 * rows, 2 * columns] for rows, columns in shapes]),
    )  # fmt: skip
    found, places = rotary_positions(grids), np.arange(len(kinds))
    assert found.of(places).tolist() == expected[:, 0].tolist()
    assert found.offset == int(offset) == 0
    assert (found.of(places) <= places).all()  # so that the table of rotations has them


def test_a_configuration_without_a_part_for_the_text_model() -> None:
    """HunYuanOCR's has the text model's fields at its top level, with older names."""
    raw = {
        "architectures": ["HunYuanVLForConditionalGeneration"], "model_type": "hunyuan_vl", "hidden_size": 64,
        "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "attention_head_dim": 16, "vocab_size": 300, "rope_theta": 100.0, "tie_word_embeddings": True,
        "rope_scaling": {"type": "xdrope", "xdrope_section": [2, 2, 2, 2], "alpha": 3.0, "factor": 1.0},
        "vision_config": {"hidden_size": 32},
    }  # fmt: skip
    config = config_for(text_part(raw))
    assert (config.hidden_size, config.head_dim) == (64, 16)
    assert config.rope_parameters["mrope_section"] == [2, 2, 2, 2]
    assert config.rope_parameters["rope_theta"] == pytest.approx(100.0 * 3.0 ** (16 / 14))


def test_an_encoder_that_draws_at_random_is_refused(vision_folder: VisionFolder) -> None:
    folder = vision_folder("ovis2")
    raw = transformers.AutoConfig.from_pretrained(folder).to_dict()
    raw["vision_config"]["tokenize_function"] = "gumbel_argmax"
    with pytest.raises(StartupError, match="draws at random"):
        load_encoder(folder, raw, torch.float32, torch.device("cpu"), None)
