"""The three positions of tokens, and which of them each frequency uses, equal Transformers'."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLRotaryEmbedding
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLRotaryEmbedding
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextRotaryEmbedding

from engine_svc.layers.rotary import rotary_components, rotary_table
from engine_svc.media.rotary_positions import PlacedGrid, SoundGrid, rotary_positions
from quire.errors import StartupError
from tokenizer_svc.sound_order import SoundOrder

MODELS = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
ROTARY = {
    "qwen2_vl": Qwen2VLRotaryEmbedding, "qwen2_5_vl": Qwen2_5_VLRotaryEmbedding, "qwen3_vl": Qwen3VLTextRotaryEmbedding,
}  # fmt: skip
MERGE = 2
# Texts before images, with at least the token that begins an image; rows and columns of the images' embeddings.
_parts = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 7), st.integers(1, 7)), min_size=1, max_size=5)


@functools.cache
def reference(model_type: str) -> Any:
    """Returns a model without weights."""
    text = {
        "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]},
    }  # fmt: skip
    config = transformers.CONFIG_MAPPING[model_type](text_config=text, vision_config={"spatial_merge_size": MERGE})
    with torch.device("meta"):
        return transformers.AutoModel.from_config(config)


@pytest.mark.parametrize("model_type", MODELS)
@settings(max_examples=60, deadline=None)
@given(parts=_parts, after=st.integers(0, 9))
def test_positions(model_type: str, parts: list[tuple[int, int, int]], after: int) -> None:
    kinds, grids = list[int](), list[PlacedGrid]()
    for before, rows, columns in parts:
        kinds += [0] * before
        grids.append(PlacedGrid(len(kinds), 1, rows, columns))
        kinds += [1] * (rows * columns)
    kinds += [0] * after
    sizes = torch.tensor([[1, rows * MERGE, columns * MERGE] for _, rows, columns in parts])
    expected, offset = reference(model_type).get_rope_index(
        torch.zeros(1, len(kinds), dtype=torch.int64), mm_token_type_ids=torch.tensor([kinds]), image_grid_thw=sizes
    )
    found = rotary_positions(grids)
    places = np.arange(len(kinds))
    assert found.of(places).tolist() == expected[:, 0].tolist()
    # Answers go on from there.
    assert found.offset == int(offset)
    later = len(kinds) + np.arange(5)
    assert found.of(later).tolist() == [(later + int(offset)).tolist()] * 3
    # Whatever is asked for at a time.
    middle = len(kinds) // 2
    assert found.of(places[middle:]).tolist() == expected[:, 0, middle:].tolist()
    # No position is beyond the token's place, so that the table of rotations has it.
    assert (found.of(places) <= places).all()


# Class in Transformers without its ending, order in prompts, and frames of a spectrogram for each token.
OMNI = {
    "qwen2_5_omni": ("Qwen2_5Omni", SoundOrder(25, 50), 4),
    "qwen3_omni": ("Qwen3OmniMoe", SoundOrder(13), 100 / 13),
}


@pytest.mark.parametrize("family", OMNI)
def test_positions_of_videos_with_sound(family: str) -> None:
    """Whichever of them lasts longer."""
    name, order, frames_per_token = OMNI[family]
    config = getattr(transformers, f"{name}ThinkerConfig")(
        vision_start_token_id=1, audio_start_token_id=2, video_token_id=3, audio_token_id=4,
        position_id_per_seconds=order.tokens_per_second,
    )  # fmt: skip
    with torch.device("meta"):
        model = getattr(transformers, f"{name}PreTrainedModelForConditionalGeneration")(config)
    model.spatial_merge_size, ends = MERGE, family == "qwen2_5_omni"
    sizes, counts = [(6, 2, 3), (2, 3, 2)], [int(3 * order.tokens_per_second), int(4 * order.tokens_per_second)]
    tokens, grids = [9, 9], list[PlacedGrid]()
    for (frames, rows, columns), count in zip(sizes, counts, strict=True):
        tokens += [1, 2]
        is_sound = order.is_sound(np.repeat(np.arange(float(frames)), rows * columns), count)
        grids.append(
            SoundGrid(
                len(tokens) - ends, frames, rows, columns, order.tokens_per_second, is_sound=is_sound, shares_ends=ends
            )
        )
        tokens += [*np.where(is_sound, 4, 3).tolist(), 8, 7, 9, 9]
    expected, offset = model.get_rope_index(
        torch.tensor([tokens]), None, torch.tensor([[t, MERGE * h, MERGE * w] for t, h, w in sizes]),
        torch.ones(1, len(tokens)), True, torch.tensor([round(count * frames_per_token) for count in counts]),
        torch.ones(2),
    )  # fmt: skip
    found = rotary_positions(grids)
    assert found.of(np.arange(len(tokens))).tolist() == expected[:, 0].tolist()
    assert found.offset == int(offset)


SECTIONS = {
    "qwen2_vl": [(16, 24, 24), (2, 3, 3), (0, 3, 5), (8, 0, 0)],
    "qwen2_5_vl": [(16, 24, 24), (1, 1, 6)],
    "qwen3_vl": [(24, 20, 20), (4, 2, 2), (2, 3, 3), (8, 0, 0), (6, 2, 0)],
}


@pytest.mark.parametrize(("model_type", "section"), [(name, each) for name, all_ in SECTIONS.items() for each in all_])
def test_frequencies(model_type: str, section: tuple[int, ...]) -> None:
    dim, longest = 2 * sum(section), 50
    parameters = {
        "rope_type": "default", "rope_theta": 1e4, "mrope_section": list(section),
        "mrope_interleaved": model_type == "qwen3_vl",
    }  # fmt: skip
    text = {"hidden_size": 4 * dim, "num_attention_heads": 4, "head_dim": dim, "rope_parameters": parameters}
    config = transformers.CONFIG_MAPPING[model_type](text_config=text).text_config
    positions = torch.randint(longest, (3, 20), generator=torch.Generator().manual_seed(0))
    expected = torch.stack(ROTARY[model_type](config)(torch.zeros(1), positions[:, None]))[:, 0, :, : dim // 2]
    components = rotary_components(parameters, dim)
    assert components is not None
    rows = rotary_table(parameters, dim, longest, longest, torch.float32)[positions]
    found = rows.gather(0, components.expand(1, *rows.shape[1:]))[0]
    torch.testing.assert_close(found.transpose(0, 1), expected)


def test_other_models_have_one_position() -> None:
    assert rotary_components({"rope_type": "default", "rope_theta": 1e4}, 16) is None


def test_sections_that_do_not_add_up_are_refused() -> None:
    with pytest.raises(StartupError, match=r"mrope_section \[2, 3, 3\] does not add up to 16"):
        rotary_components({"mrope_section": [2, 3, 3]}, 32)
