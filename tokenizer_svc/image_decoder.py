"""Image files in, upright RGB images out."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator

import numpy as np
from PIL import Image, ImageOps

from tokenizer_svc.media_rejection import MediaRejection

_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
_MAX_PIXELS = 64 * 2**20


def decode_image(file: bytes, formats: tuple[str, ...] = _FORMATS, max_pixels: int = _MAX_PIXELS) -> Image.Image:
    """The image of a file, or an animation's first, in RGB, upright, and on white where it is transparent.

    Args:
        formats: Pillow's names of those that are accepted.

    Raises:
        MediaRejection: it is not an image of these formats, or it is too large.
    """
    with rejecting_broken_images(formats, max_pixels):
        return in_rgb(open_image(file, formats, max_pixels))


def open_image(file: bytes, formats: tuple[str, ...], max_pixels: int) -> Image.Image:
    """The image, not decoded yet.

    Raises: what `rejecting_broken_images` turns into a rejection.
    """
    image = Image.open(io.BytesIO(file), formats=formats)
    if image.width * image.height > max_pixels:
        raise _too_large(f"{image.width} x {image.height}", max_pixels)
    return image


@contextlib.contextmanager
def rejecting_broken_images(formats: tuple[str, ...], max_pixels: int) -> Iterator[None]:
    """
    Raises:
        MediaRejection: Pillow cannot decode an image, or the image is too large.
    """
    try:
        yield
    except (MediaRejection, MemoryError):
        raise
    except Image.DecompressionBombError:
        raise _too_large("too many", max_pixels) from None
    except Exception as error:  # whatever Pillow raises about broken files
        raise MediaRejection(
            f"An image cannot be decoded ({type(error).__name__}). Send one of these formats: {', '.join(formats)}."
        ) from error


def in_rgb(image: Image.Image) -> Image.Image:
    """A copy of the image in RGB, upright, and on white where it is transparent."""
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I;16"):  # `convert` would cut values off at 255
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if not image.has_transparency_data:
        return image.convert("RGB")
    below = Image.new("RGBA", image.size, "white")
    return Image.alpha_composite(below, image.convert("RGBA")).convert("RGB")


def _too_large(pixels: str, max_pixels: int) -> MediaRejection:
    return MediaRejection(f"An image has {pixels} pixels; at most {max_pixels} are allowed. Send a smaller one.")
