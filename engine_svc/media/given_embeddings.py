"""Images that come as embeddings, and so need not be encoded."""

from __future__ import annotations

from typing import Any

import torch

from engine_svc.media.base import EncodedImage, tensor_of
from engine_svc.media.unfit import UnfitImage, wrong_shape
from quire.images import EMBEDS, Image


class GivenEmbeddings:
    """What embeddings of a model's images are like.

    Those of Qwen3-VL, of which some are added between layers, have these behind the others in each row.
    """

    def __init__(self, config: Any, dtype: torch.dtype, device: torch.device) -> None:
        """
        Args:
            config: of the model.
        """
        self._hidden_size: int = config.get_text_config().hidden_size
        self._num_deep = len(getattr(config.vision_config, "deepstack_visual_indexes", None) or ())
        self._has_layers_of_its_own = hasattr(config, "deepstack_layer_map")
        self._dtype, self._device = dtype, device

    def of(self, image: Image) -> EncodedImage | None:
        """The embeddings that an image comes as; None if it does not.

        Raises:
            UnfitImage: they are not of this model, or not finite in its dtype.
        """
        given = next((each for each in image.inputs if each.name == EMBEDS), None)
        if given is None:
            return None
        if self._has_layers_of_its_own:
            raise UnfitImage(f"this model does not take {EMBEDS}, only images")
        kinds = 1 + self._num_deep
        size = self._hidden_size * kinds
        if given.dtype != "float32" or len(given.shape) != 2 or given.shape[1] != size:
            raise wrong_shape(given, f"float32 [rows, {size}]", "model")
        values = tensor_of(given, self._device).to(self._dtype)
        if not bool(torch.isfinite(values).all()):
            raise UnfitImage(f"{EMBEDS} has values that are not finite in {self._dtype}")
        rows = values.view(len(values), kinds, self._hidden_size)
        return EncodedImage(rows[:, 0].contiguous(), rows[:, 1:].contiguous() if self._num_deep else None)
