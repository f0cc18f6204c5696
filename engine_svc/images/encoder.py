"""Encodes images to embeddings of the text model, with the image encoder and projector of the Transformers library."""

from __future__ import annotations

import contextlib
import inspect
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import transformers

from engine_svc.images.input_checks import APART_IN_TIME, GRID, INPUTS, InputChecks, UnfitImage
from engine_svc.images.pruning import most_changed
from engine_svc.images.rotary_positions import PlacedGrid
from quire.errors import StartupError
from quire.images import PIXELS, VIDEO_PIXELS, Image, ImageInput
from quire.media import MediaKind

# Transformers changes torch's defaults and its initializers for the whole process while it makes a model.
_ALONE = threading.Lock()
_DTYPES = {"uint8": torch.uint8, "bool": torch.bool, "int64": torch.int64, "float32": torch.float32}
# Names of the text model within the whole model.
_TEXT_MODELS = ("language_model", "text_model")
_VIDEO_IDS = ("video_token_id", "video_token_index")
_MOST_PATCHES = 16384  # of a video that are encoded at once; the rest follows, so that memory stays bounded
_OF_TEXT = re.compile(r"\b(language_model|text_model|lm_head)\.")


class EncodedImage(NamedTuple):
    """An image for the text model, with a row for each of its image tokens."""

    embeddings: torch.Tensor  # [rows, hidden_size]
    deep: torch.Tensor | None  # [rows, layers, hidden_size]: added to the hidden states after each of the first layers
    kept: torch.Tensor | None = None  # int64 [rows]: which of a video's embeddings they are; None means all


class ImageEncoder:
    """The parts of a vision-language model that turn an image or a video into embeddings.

    Attributes:
        kinds: what prompts may have.
        token_ids: the tokens that prompts have in place of embeddings: one for images, and maybe one for videos.
    """

    def __init__(
        self, folder: Path, raw: Mapping[str, Any], kinds: frozenset[MediaKind], dtype: torch.dtype,
        device: torch.device, tensors: Mapping[str, torch.Tensor] | None, *, seed: int | None = None,
    ) -> None:  # fmt: skip
        """
        Args:
            raw: config.json, with the user's changes.
            tensors: the checkpoint's tensors; None means that Transformers reads them itself.
            seed: of random weights; None for those of the checkpoint.

        Raises:
            StartupError: Transformers cannot load these parts, or the checkpoint lacks some of their weights.
        """
        config = _without_text(raw)
        self.kinds = kinds
        video_ids = (getattr(config, name, None) for name in _VIDEO_IDS)
        self.token_ids = [config.image_token_id, *(each for each in video_ids if isinstance(each, int))]
        # Patches along each side of an embedding, for models whose tokens have three positions; else 0.
        text = config.get_text_config()
        is_turned = "mrope_section" in (getattr(text, "rope_parameters", None) or {})
        self._merge_size: int = config.vision_config.spatial_merge_size if is_turned else 0
        self._num_frames: int = getattr(config.vision_config, "temporal_patch_size", 1)  # in a patch
        self._is_apart_in_time = config.model_type in APART_IN_TIME
        # Positions in time for a second of video; 0 for models that count patches instead.
        self._positions_per_second = getattr(config.vision_config, "tokens_per_second", 0)
        with _ALONE, _quiet():
            model = _load(folder, config, dtype, tensors) if seed is None else _random(config, dtype, seed)
        for name in _TEXT_MODELS:
            if hasattr(model, name):
                delattr(model, name)
        self._model = model.eval().to(device)
        self._dtype, self._device = dtype, device
        self._names = INPUTS & {VIDEO_PIXELS, *inspect.signature(model.get_image_features).parameters}
        self._checks = InputChecks(config, self._merge_size)

    @torch.inference_mode()
    def encode(self, image: Image) -> EncodedImage:
        """Encodes an image or a video.

        Raises:
            UnfitImage: its inputs are not those of an image for this encoder.
            Exception: whatever the encoder raises about inputs that it was not made for.
        """
        given = {each.name: each for each in image.inputs if each.name in self._names}
        self._checks.check(given, image)
        moved = {name: self._moved(each, image) for name, each in given.items()}
        if VIDEO_PIXELS in moved:
            return self._of(self._model.get_video_features(**moved))
        parts = [self._of(self._model.get_image_features(**part)) for part in _parts(moved)]
        deep = [each.deep for each in parts if each.deep is not None]
        embeddings = torch.cat([each.embeddings for each in parts])
        if self._merge_size and (count := self._checks.num_kept(image)):
            kept = most_changed(embeddings, self._checks.grid(image)[0], count)
            return EncodedImage(embeddings[kept], None, kept)
        return EncodedImage(embeddings, torch.cat(deep) if deep else None)

    def _of(self, found: Any) -> EncodedImage:
        """What an encoder returned."""
        deep = [_joined(each).to(self._dtype) for each in getattr(found, "deepstack_features", None) or ()]
        return EncodedImage(_joined(found.pooler_output).to(self._dtype), torch.stack(deep, 1) if deep else None)

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
        if not self._merge_size:
            return []
        frames, rows, columns = self._checks.grid(image)
        num_kept = self._checks.num_kept(image)
        if (num_kept or frames * rows * columns) != len(places):
            some = f", of which {num_kept} are kept," if num_kept else ""
            raise UnfitImage(
                f"a grid of {frames} x {rows} x {columns} embeddings{some} does not fit {len(places)} tokens"
            )
        interval = 1.0
        if self._positions_per_second and frames > 1:
            interval = self._positions_per_second * self._checks.seconds(image)
        kept = None
        if num_kept:
            kept = np.arange(num_kept) if encoded is None or encoded.kept is None else encoded.kept.cpu().numpy()
        apart = frames if self._is_apart_in_time else 1
        grids = []
        for own in places.reshape(apart, -1):
            if own[-1] - own[0] >= len(own):
                raise UnfitImage("there are other tokens between its own")
            grids.append(PlacedGrid(int(own[0]), frames // apart, rows, columns, interval, kept))
        return grids

    def _moved(self, given: ImageInput, image: Image) -> torch.Tensor:
        values = torch.frombuffer(bytearray(given.data), dtype=_DTYPES[given.dtype]).view(given.shape).to(self._device)
        if given.name not in (PIXELS, VIDEO_PIXELS):
            return values
        pixels = _normalized(values, image).to(self._dtype)
        if self._checks.has_one_frame(given):
            return _repeated(pixels, len(image.pixel_scale), self._num_frames)
        return pixels


def _parts(inputs: Mapping[str, torch.Tensor]) -> Iterator[Mapping[str, torch.Tensor]]:
    """The inputs of a video in parts of whole frames, if it has many patches: frames do not attend to each other."""
    if (grid := inputs.get(GRID)) is None or len(inputs[PIXELS]) <= _MOST_PATCHES:
        yield inputs
        return
    frames, rows, columns = grid[0].tolist()
    count = max(1, _MOST_PATCHES // (rows * columns))
    for first in range(0, frames, count):
        some = slice(first * rows * columns, (first + count) * rows * columns)
        part = torch.tensor([[min(count, frames - first), rows, columns]], device=grid.device)
        yield {**inputs, PIXELS: inputs[PIXELS][some], GRID: part}


def _repeated(patches: torch.Tensor, channels: int, num_frames: int) -> torch.Tensor:
    """Patches of a still image as an encoder of videos takes them: [patches, channels * frames * pixels]."""
    apart = patches.view(len(patches), channels, 1, -1)
    return apart.expand(-1, -1, num_frames, -1).reshape(len(patches), -1)


def _joined(part: torch.Tensor | Sequence[torch.Tensor]) -> torch.Tensor:
    """What an encoder returns for an image, as [image tokens, hidden_size]."""
    whole = part if isinstance(part, torch.Tensor) else torch.cat(list(part))
    return whole.reshape(-1, whole.shape[-1])


def _normalized(pixels: torch.Tensor, image: Image) -> torch.Tensor:
    """Pixels as the encoder takes them, in float32. Channels are a dimension of their own, or lead within patches."""
    channels = len(image.pixel_scale)
    scale, shift = (torch.tensor(each, device=pixels.device) for each in (image.pixel_scale, image.pixel_shift))
    if pixels.dim() == 2:  # patches: [patches, channels * the pixels of a channel]
        patches = pixels.view(len(pixels), channels, -1) * scale[:, None] + shift[:, None]
        return patches.view(pixels.shape)
    return pixels * scale[:, None, None] + shift[:, None, None]


def _without_text(raw: Mapping[str, Any]) -> Any:
    """The configuration of a model whose text model has neither layers nor a vocabulary worth mentioning.

    Raises:
        StartupError: the model is not supported.
    """
    config = transformers.CONFIG_MAPPING[raw["model_type"]].from_dict(dict(raw))
    text = config.get_text_config()
    deep = getattr(config.vision_config, "deepstack_visual_indexes", None) or ()
    if len(deep) >= text.num_hidden_layers:  # the last layer may compute only some rows
        raise StartupError(f"Images are added after {len(deep)} of {text.num_hidden_layers} layers; Quire needs fewer.")
    text.num_hidden_layers, text.vocab_size, text.pad_token_id = 0, 1, None
    if getattr(text, "layer_types", None):
        text.layer_types = []
    config.quantization_config = None
    return config


def _load(
    folder: Path, config: Any, dtype: torch.dtype, tensors: Mapping[str, torch.Tensor] | None
) -> transformers.PreTrainedModel:
    """
    Raises:
        StartupError: see ImageEncoder.
    """
    try:
        model, told = transformers.AutoModelForImageTextToText._model_mapping[type(config)].from_pretrained(
            folder if tensors is None else None, config=config, dtype=dtype, use_safetensors=True,
            local_files_only=True, state_dict=tensors, output_loading_info=True, ignore_mismatched_sizes=True,
        )  # fmt: skip
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        raise StartupError(f"Transformers cannot load the image encoder in {folder}: {error}") from error
    wrong = [*told["missing_keys"], *(name for name, *_ in told["mismatched_keys"])]
    if wrong := sorted(name for name in wrong if not _OF_TEXT.search(name)):
        raise StartupError(
            f"{folder}: the checkpoint lacks weights of the image encoder, or has them in another shape: "
            f"{', '.join(wrong[:5])} ({len(wrong)} in all). Encoders with quantized weights are not supported; "
            "--limit-mm-per-prompt image=0,video=0 serves the model for text only."
        )
    return model.model


def _random(config: Any, dtype: torch.dtype, seed: int) -> transformers.PreTrainedModel:
    """A model with random weights, for benchmarks of shapes: the same on all ranks."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return transformers.AutoModelForImageTextToText.from_config(config, dtype=dtype).model


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps Transformers from reporting the weights of the text model, which is loaded elsewhere."""
    log = transformers.utils.logging
    verbosity = log.get_verbosity()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(verbosity)
