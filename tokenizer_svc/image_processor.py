"""The model's image processor, from the Transformers library: image files in, inputs of the image encoder out.

Runs in a process of its own (see `media_process`), because an image of a few kilobytes can take gigabytes to decode.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import transformers
from PIL import Image

from quire.images import DTYPES, LOCAL_PIXELS, MARKS, PIXELS, PLACES, TILE_SHAPES
from quire.retrievers import as_vision_language_model
from tokenizer_svc.image_decoder import decode_image
from tokenizer_svc.media_rejection import MediaRejection
from tokenizer_svc.normalization import scale_and_shift
from tokenizer_svc.processed import Processed
from tokenizer_svc.processor_loading import load_processor
from tokenizer_svc.video_processor import load_video_processor

_MASK = "pixel_attention_mask"
_OLD_NAMES = {"pixel_values_images": PIXELS}  # Video-LLaVA's
_IMAGE_TOKENS, _MARKS = ("image_token_id", "image_token_index"), "visual_indicator_token_ids"
_SOME_SIZE = (640, 480)
# Types of models whose templates, but not whose processors, write these around an image and a video.
_QWEN_TYPES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5")
_AROUND = ("<|vision_start|>", "<|vision_end|>")
# Settings that an encoder has to know too, which takes them from the model's configuration.
_OF_ENCODERS = ("downsample_mode",)
# Pixels are normalized by the engine, so that they are sent as bytes.
_AS_BYTES = {"do_rescale": False, "do_normalize": False, "return_tensors": "np"}


class ImageProcessor:
    """The image processor of a model.

    Attributes:
        placeholder: what the chat template writes for an image, apart from what is around it.
        around: what is around the placeholders of images and videos, for templates that take contents as strings.
        image_token_id: the token that the prompt has for each embedding of an image.
        image_token: its text.
        mark_ids: tokens around and between these whose embeddings are the image encoder's, too.
        videos: the part for videos; None if the model reads none.
    """

    def __init__(self, folder: Path, video_pruning_rate: float = 0.0) -> None:
        """
        Args:
            folder: of the tokenizer, with the files of the processor.
            video_pruning_rate: see VideoProcessor.

        Raises: various exceptions if Transformers cannot load it.
        """
        self._processor = load_processor(folder)
        _check_told(type(self._processor))
        # Qianfan-OCR's template writes another token than that of embeddings.
        self.placeholder: str = getattr(self._processor, "image_placeholder_token", self._processor.image_token)
        config = read_config(folder)
        self.around = _AROUND if str(config.get("model_type")).startswith(_QWEN_TYPES) else ("", "")
        self.image_token_id = _image_token_id(config, self._processor)
        self.image_token: str = self._processor.tokenizer.convert_ids_to_tokens(self.image_token_id)
        self.mark_ids: list[int] = [*config.get(_MARKS, ())]
        self.videos = load_video_processor(folder, self._processor, self.image_token_id, video_pruning_rate)

    def prepare(self, file: bytes, settings: Mapping[str, Any]) -> Processed:
        """
        Args:
            file: an image file.
            settings: for the image processor, instead of the model's own.

        Raises:
            MediaRejection: it is not an image, it is too large, or the settings do not suit the processor.
        """
        return self._prepared(decode_image(file), settings)

    def check(self, settings: Mapping[str, Any]) -> None:
        """Prepares some image.

        Raises:
            MediaRejection: the settings do not suit the processor.
        """
        self._prepared(Image.new("RGB", _SOME_SIZE), settings)

    @functools.cached_property
    def sample(self) -> Processed:
        """Some image, prepared with the settings that the model comes with."""
        return self._prepared(Image.new("RGB", _SOME_SIZE), {})

    def _prepared(self, image: Image.Image, settings: Mapping[str, Any]) -> Processed:
        try:
            found, text = self._processed(image, settings)
            scale, shift = self._normalization(settings)
        except MemoryError:
            raise
        except Exception as error:  # whatever Transformers raises about settings
            at_fault, with_them = ("mm_processor_kwargs", " with mm_processor_kwargs") if settings else ("", "")
            raise MediaRejection(
                f"The model's image processor does not accept the image{with_them}: {error}", at_fault
            ) from error
        named = {_OLD_NAMES.get(name, name): each for name, each in found.items()}
        inputs = {name: _sendable(name, each) for name, each in named.items() if self._is_sent(name, each)}
        inputs[PIXELS] = self._once(inputs[PIXELS])
        if PLACES in inputs:
            inputs |= _without_padding(inputs)
        if TILE_SHAPES in inputs:
            inputs = _without_filled_tiles(inputs)
        tokens = self._processor.tokenizer.encode(text, add_special_tokens=False)
        own = [token for token in tokens if token == self.image_token_id or token in self.mark_ids]
        if self.mark_ids:
            known = {token: index for index, token in enumerate(self.mark_ids)}
            inputs[MARKS] = np.array([known.get(token, -1) for token in own])
        return Processed(text, len(own), inputs, scale, shift, number_marks=self._number_marks(settings))

    def _number_marks(self, settings: Mapping[str, Any]) -> tuple[str, ...]:
        """See Processed."""
        processor = self._processor
        chosen = settings.get("use_image_id", getattr(processor, "use_image_id", None))
        if not (getattr(processor, "default_use_image_id", False) if chosen is None else chosen):
            return ()
        return processor.image_id_start_token, processor.image_id_end_token

    def _is_sent(self, name: str, value: Any) -> bool:
        """Whether the model takes this; some things are for the prompt alone."""
        is_array = isinstance(value, np.ndarray) and value.dtype.kind in "buif"
        return is_array and name not in self._processor.unused_input_names

    def _processed(self, image: Image.Image, settings: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
        processor = self._processor
        for name in settings.keys() & _OF_ENCODERS:
            if settings[name] != (own := getattr(processor.image_processor, name, None)):
                raise ValueError(f"{name} is {own} in the model's files, and cannot be changed")
        merged = processor._merge_kwargs(
            tokenizer_init_kwargs=processor.tokenizer.init_kwargs, images_kwargs={**settings, **_AS_BYTES}
        )
        images, *_ = processor.prepare_inputs_layout(images=[image], **merged)
        others = merged.keys() - {"images_kwargs"}
        own = inspect.signature(processor._process_images).parameters.keys() & others  # besides the images'
        found, (text,) = processor._process_images(
            images, **{name: merged[name] for name in own}, **merged["images_kwargs"]
        )
        return found, text

    def _once(self, pixels: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Patches [patches, channels * frames * pixels] with one frame, as all frames of a still image are the same."""
        frames = getattr(self._processor.image_processor, "temporal_patch_size", None)
        if frames is None or pixels.ndim != 2:
            return pixels
        apart = pixels.reshape(len(pixels), 3, frames, -1)
        return np.ascontiguousarray(apart[:, :, 0]).reshape(len(pixels), -1)

    def _normalization(self, settings: Mapping[str, Any]) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Scale and shift of each color channel, as the model's processor would normalize.

        Raises:
            ValueError: the settings are not finite numbers.
        """

        def chosen(name: str, default: Any) -> Any:
            return settings.get(name, getattr(self._processor.image_processor, name, default))

        factor = chosen("rescale_factor", 1 / 255) if chosen("do_rescale", True) else 1.0
        mean, deviation = np.zeros(3), np.ones(3)
        if chosen("do_normalize", True):
            mean, deviation = np.array(chosen("image_mean", mean)), np.array(chosen("image_std", deviation))
        return scale_and_shift(factor, mean, deviation)


def _sendable(name: str, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The values in a dtype that can be sent.

    Raises:
        MediaRejection: pixels are not whole numbers up to 255.
    """
    if name in (PIXELS, LOCAL_PIXELS):
        pixels = values.astype(np.uint8)
        if not np.array_equal(pixels, values):
            raise MediaRejection("The model's image processor does not keep pixels as bytes, which Quire needs.")
        return pixels
    if name == _MASK:
        return values.astype(np.bool_)
    return (
        values if values.dtype.name in DTYPES else values.astype(np.float32 if values.dtype.kind == "f" else np.int64)
    )


def _without_padding(inputs: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    """Gemma 4's patches [1, patches, values] and their places [1, patches, 2] without those that fill them up to the
    most that an image may have: encoders ignore them, but would compute them."""
    count = int((inputs[PLACES] >= 0).all(-1).sum())
    return {name: np.ascontiguousarray(inputs[name][:, :count]) for name in (PIXELS, PLACES)}


def _without_filled_tiles(inputs: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    """LFM2-VL's patches [tiles, patches, values] as [patches, values], without those that fill up smaller tiles."""
    return {PIXELS: inputs[PIXELS][inputs[_MASK]], TILE_SHAPES: inputs[TILE_SHAPES]}


def _check_told(processor_class: type[Any]) -> None:
    """
    Raises:
        ValueError: only a whole conversation tells what takes an image's place in it (Idefics 2).
    """
    base = transformers.ProcessorMixin
    if all(
        getattr(processor_class, name) is getattr(base, name) for name in ("replace_image_token", "_process_images")
    ):
        raise ValueError(f"{processor_class.__name__} does not tell what takes the place of an image in a prompt.")


def read_config(folder: Path) -> Mapping[str, Any]:
    """The model's configuration, completed by its ids of tokens: files leave out values that Transformers has too.

    Nothing if the tokenizer is in a folder of its own.
    """
    file = folder / "config.json"
    found = as_vision_language_model(json.loads(file.read_bytes())) if file.is_file() else {}
    if found.get("model_type") not in transformers.CONFIG_MAPPING:
        return found
    known = vars(transformers.CONFIG_MAPPING[found["model_type"]])
    names = (_MARKS,) if any(name in found for name in _IMAGE_TOKENS) else (_MARKS, *_IMAGE_TOKENS)
    return {name: known[name] for name in names if isinstance(known.get(name), int | tuple)} | found


def _image_token_id(config: Mapping[str, Any], processor: Any) -> int:
    for name in _IMAGE_TOKENS:
        if isinstance(config.get(name), int):
            return int(config[name])
    # Llama 4's image token stands for the whole image.
    patch = getattr(processor, "img_patch_token", None)
    return int(processor.image_token_id if patch is None else processor.tokenizer.convert_tokens_to_ids(patch))
