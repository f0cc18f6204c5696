"""Images within a prompt, as the tokenizer service prepares them for a model's image encoder."""

from __future__ import annotations

import functools
import hashlib
import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from quire.block_hash import Content
from quire.errors import InvalidRequest

# Limit for the inputs of all images of a prompt: a message on the wire has room for this and the rest of a request.
MAX_IMAGES_BYTES = 48 * 2**20
MAX_IMAGES = 1000
# Dtype → bytes per value.
DTYPES: Mapping[str, int] = MappingProxyType({"uint8": 1, "bool": 1, "int64": 8, "float32": 4})
PIXELS, VIDEO_PIXELS = "pixel_values", "pixel_values_videos"
LOCAL_PIXELS = "pixel_values_local"  # of tiles, where those of the whole image have another size
PLACES = "image_position_ids"  # column and row of each patch
TILE_SHAPES = "spatial_shapes"  # rows and columns of the patches of each tile
# Of each token of an image: which of the embeddings that the encoder has for marks it is; -1 for a part of the image.
MARKS = "marks"
FEATURES = "input_features"  # of audio
EMBEDS = "image_embeds"  # of an image that comes encoded: float32 [rows, values]
GRID = "image_grid_thw"  # patches by time, row and column
SOUND = "is_sound"  # of each token of a video: whether it is of its sound, whose features come with the video
FEATURE_MASKS = ("input_features_mask", "feature_attention_mask")
_ALL_PIXELS = (PIXELS, LOCAL_PIXELS, VIDEO_PIXELS, FEATURES, EMBEDS)
_NAME = "images"
_MAX_DIMENSIONS = 8


@dataclass(frozen=True)
class ImageInput:
    """An input of an image encoder; see quire.v1.ImageInput."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: bytes

    def check(self) -> None:
        """
        Raises:
            InvalidRequest: dtype, shape and number of bytes do not match.
        """
        size, count = DTYPES.get(self.dtype), math.prod(self.shape)
        if not (size and count) or len(self.shape) > _MAX_DIMENSIONS or count * size != len(self.data):
            raise InvalidRequest(
                f"images: {self.name[:50]} has {len(self.data)} bytes, which do not match the type "
                f"{self.dtype[:20]!r} and the shape {list(self.shape[:_MAX_DIMENSIONS])}. Send images as the tokenizer "
                "service's RenderChat returns them.",
                parameter=_NAME,
            )


@dataclass(frozen=True)
class Image:
    """An image or a video of a prompt; see quire.v1.Image."""

    offset: int
    num_tokens: int
    inputs: tuple[ImageInput, ...]
    pixel_scale: tuple[float, ...] = ()
    pixel_shift: tuple[float, ...] = ()
    routing_key: int = 0  # see quire.v1.Image, as for the next
    encoder: str = ""
    goes_on: bool = False  # a recording of which more follows

    @property
    def end(self) -> int:
        """The position after its last token."""
        return self.offset + self.num_tokens

    @property
    def num_bytes(self) -> int:
        """Bytes of its inputs."""
        return sum(len(each.data) for each in self.inputs)

    @property
    def is_embedded(self) -> bool:
        """Whether it comes as embeddings, before these have been dropped."""
        return any(each.name == EMBEDS for each in self.inputs)

    @property
    def is_audio(self) -> bool:
        """Whether it is an audio, also after its features have been dropped."""
        names = {each.name for each in self.inputs}
        return bool(names.intersection(FEATURE_MASKS)) and SOUND not in names

    @property
    def num_frames(self) -> int:
        """Frames of an audio's spectrograms, also after these have been dropped; 0 if it is none."""
        return next((math.prod(each.shape) for each in self.inputs if each.name in FEATURE_MASKS), 0)

    def at(self, offset: int, num_tokens: int) -> Image:
        """The image at another place; its digest need not be computed again."""
        placed = replace(self, offset=offset, num_tokens=num_tokens)
        placed.__dict__["digest"] = self.digest
        return placed

    def named(self) -> Image:
        """The image with the key by which routers choose a worker that encodes it."""
        return replace(self, routing_key=int.from_bytes(self.digest[:8], "little"))

    def without_pixels(self) -> Image:
        """What is needed of the image once it is encoded: its place, and its size."""
        return replace(self, inputs=tuple(each for each in self.inputs if each.name not in _ALL_PIXELS))

    @functools.cached_property
    def digest(self) -> bytes:
        """Identifies the content, wherever it stands in a prompt: equal only for equal inputs."""
        if self.goes_on:  # nobody knows yet what it equals
            return secrets.token_bytes(hashlib.sha256().digest_size)
        found = hashlib.sha256(repr((self.pixel_scale, self.pixel_shift)).encode())
        for each in self.inputs:
            found.update(repr((each.name, each.dtype, each.shape)).encode())
            found.update(hashlib.sha256(each.data).digest())
        return found.digest()


def contents_of(images: Sequence[Image]) -> tuple[Content, ...]:
    """What identifies the images in the hashes of a prompt's blocks."""
    return tuple((image.offset, image.digest) for image in images)


def check_images(images: Sequence[Image], num_prompt_tokens: int, *, may_go_on: bool = False) -> None:
    """Checks where a prompt's images are, and their sizes.

    Args:
        may_go_on: whether recordings may go on.

    Raises:
        InvalidRequest: they overlap, are outside the prompt, are too many or too large, or are malformed.
    """
    if len(images) > MAX_IMAGES:
        raise InvalidRequest(f"A prompt has {len(images)} images; at most {MAX_IMAGES} are allowed.", parameter=_NAME)
    check_size(images)
    end = 0
    for image in images:
        if image.num_tokens < 1 or image.offset < end or image.end > num_prompt_tokens:
            raise InvalidRequest(
                f"images: an image of {image.num_tokens} tokens at {image.offset} is empty, overlaps another one, or "
                f"is outside the prompt's {num_prompt_tokens} tokens. Send images as the tokenizer service's "
                "RenderChat returns them.",
                parameter=_NAME,
            )
        end = image.end
        if image.goes_on and not may_go_on:
            raise InvalidRequest(
                "images: a recording goes on, but this model does not write while it hears. Send it when it is over.",
                parameter=_NAME,
            )
        if len(image.pixel_scale) != len(image.pixel_shift):
            raise InvalidRequest(
                f"images: an image has {len(image.pixel_scale)} pixel_scale and {len(image.pixel_shift)} pixel_shift; "
                "there must be one of each for each color channel.",
                parameter=_NAME,
            )
        for each in image.inputs:
            each.check()


def check_size(images: Sequence[Image], parameter: str = _NAME) -> None:
    """
    Raises:
        InvalidRequest: the images' inputs have more than MAX_IMAGES_BYTES.
    """
    size = sum(image.num_bytes for image in images)
    if size > MAX_IMAGES_BYTES:
        raise InvalidRequest(
            f"The images, videos and audio of a prompt take {size} bytes for the model; at most {MAX_IMAGES_BYTES} are "
            "allowed. Send fewer or smaller ones.",
            parameter=parameter,
        )
