"""What encoders of images, videos and audio have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch

from engine_svc.media.rotary_positions import PlacedGrid
from quire.images import Image, ImageInput
from quire.media import MediaKind

_DTYPES = {"uint8": torch.uint8, "bool": torch.bool, "int64": torch.int64, "float32": torch.float32}


class EncodedImage(NamedTuple):
    """An image for the text model, with a row for each of its image tokens."""

    embeddings: torch.Tensor  # [rows, hidden_size]
    deep: torch.Tensor | None  # [rows, kinds, hidden_size], added between layers: see ModelConfig.feature_layers
    kept: npt.NDArray[np.int64] | None = None  # [rows]: which of a video's embeddings they are; None means all
    both_ways: bool = True  # whether its tokens attend in both directions, in models where those of images do


class MediaEncoder(Protocol):
    """The parts of a model that turn images, videos or audio into embeddings of its text model.

    Attributes:
        kinds: what prompts may have.
        token_ids: the tokens that prompts have in place of embeddings; None if they have nothing between these.
        frames_per_token: see ModelFacts.
    """

    kinds: frozenset[MediaKind]
    token_ids: Sequence[int] | None
    frames_per_token: int

    def encode(self, image: Image) -> EncodedImage:
        """Encodes an image, a video or an audio.

        Raises:
            UnfitImage: its inputs are not what this encoder takes.
            Exception: whatever the encoder raises about inputs that it was not made for.
        """
        ...

    def grids(
        self, image: Image, places: npt.NDArray[np.int64], encoded: EncodedImage | None = None
    ) -> list[PlacedGrid]:
        """The grids of an image or a video whose embeddings are at these places of a prompt.

        There are several for a video whose frames are images of their own, and none if the model does not care.

        Args:
            encoded: None if all of it is computed: the positions of its own embeddings are not needed anymore.

        Raises:
            UnfitImage: it has another number of embeddings, or there are other tokens between those of a grid.
        """
        ...


@runtime_checkable
class LiveEncoder(Protocol):
    """An encoder of recordings that go on, which hears nothing but what came before."""

    def hear(self, audio: Image, caches: dict[str, Any]) -> EncodedImage:
        """Encodes what comes next of a recording.

        Args:
            caches: empty for its beginning; changed to those with which it goes on.

        Raises: see MediaEncoder.encode.
        """
        ...


def tensor_of(given: ImageInput, device: torch.device) -> torch.Tensor:
    """The values of an input, on the device."""
    return torch.frombuffer(bytearray(given.data), dtype=_DTYPES[given.dtype]).view(given.shape).to(device)


def joined(part: torch.Tensor | Sequence[torch.Tensor]) -> torch.Tensor:
    """What an encoder returns for an image, as [image tokens, hidden_size]."""
    whole = part if isinstance(part, torch.Tensor) else torch.cat(list(part))
    return whole.reshape(-1, whole.shape[-1])
