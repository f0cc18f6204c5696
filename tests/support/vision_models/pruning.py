"""What Transformers' model answers to a video of which some embeddings are left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import transformers

from quire.sampling import SamplingParameters
from tests.support.vision_models.prompts import request_of
from tests.support.vision_models.reference import Frames, reference_generate


def pruned_by_hand(
    folder: Path, messages: Sequence[Mapping[str, Any]], frames: Frames, rate: float, count: int
) -> list[int]:
    """The likeliest answer by Transformers' model to the prompt without what is left out."""
    prompt, _ = reference_generate(folder, messages, [], 1, videos=[frames])
    model: Any = transformers.AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float64).eval()
    image = request_of(folder, messages, [], SamplingParameters(), videos=[frames]).images[0]
    inputs = {each.name: np.frombuffer(each.data, each.dtype).reshape(each.shape) for each in image.inputs}
    patches = torch.from_numpy(inputs["pixel_values"].astype(np.float64)).view(-1, 3, 98)
    scale, shift = (torch.tensor(each, dtype=torch.float64)[:, None] for each in (image.pixel_scale, image.pixel_shift))
    grid = torch.from_numpy(inputs["image_grid_thw"].copy())
    seconds = {"second_per_grid_ts": torch.tensor(inputs["second_per_grid_ts"])} if len(inputs) > 2 else {}
    is_video = torch.tensor(prompt) == model.config.video_token_id
    with torch.inference_mode():
        found = model.model.get_video_features((patches * scale + shift).view(-1, 294), grid).pooler_output
        embeddings = torch.cat(list(found))
        by_time = embeddings.view(int(grid[0, 0]), -1, embeddings.shape[-1])
        changes = 1 - F.cosine_similarity(by_time[1:], by_time[:-1], dim=-1).flatten()
        per_frame = by_time.shape[1]
        num_kept = max(per_frame, int(len(embeddings) * (1 - rate)))
        later = changes.argsort(descending=True)[: num_kept - per_frame] + per_frame
        kept = torch.cat([torch.arange(per_frame), later.sort().values])
        positions, _ = model.model.get_rope_index(
            torch.tensor([prompt]), is_video[None].int() * 2, video_grid_thw=grid, **seconds
        )
        whole = model.get_input_embeddings()(torch.tensor(prompt)).clone()
        whole[is_video] = embeddings
        remains = ~is_video
        remains[is_video.nonzero()[:, 0][kept]] = True
        rows, places = whole[remains][None], positions[:, :, remains]
        answer: list[int] = []
        for _ in range(count):
            logits = model(inputs_embeds=rows, position_ids=places, use_cache=False).logits
            answer.append(int(logits[0, -1].argmax()))
            rows = torch.cat([rows, model.get_input_embeddings()(torch.tensor([answer[-1:]]))], 1)
            places = torch.cat([places, places[:, :, -1:] + 1], 2)
    return answer
