"""Video files in, upright RGB images of the wanted frames out.

Runs in a process of its own (see `media_process`), because a video of a few kilobytes can take gigabytes to decode.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence

from PIL import Image

from tokenizer_svc.film import Film
from tokenizer_svc.image_decoder import decode_image, in_rgb, open_image, rejecting_broken_images
from tokenizer_svc.media_rejection import MediaRejection
from tokenizer_svc.video import MAX_PIXELS, UNKNOWN_FPS, Video, VideoFacts, check_num_frames

_STILLS = ("PNG", "JPEG", "WEBP")
_ANIMATIONS = ("GIF", "WEBP")
_FILMS = ("mov", "matroska", "avi")
# How files begin, by FFmpeg's or Pillow's name of the format. FFmpeg is told the name: left to guess, it would take
# playlists too, which have it read other files.
_FORMATS = {
    "mov": rb"....ftyp", "matroska": rb"\x1A\x45\xDF\xA3", "avi": rb"RIFF....AVI ", "GIF": rb"GIF8",
    "WEBP": rb"RIFF....WEBP", "PNG": rb"\x89PNG", "JPEG": rb"\xFF\xD8\xFF",
}  # fmt: skip


def open_video(files: Sequence[bytes]) -> Video:
    """
    Args:
        files: a video, an animation or an image; or an image for each of several frames.

    Raises:
        MediaRejection: it is none of these, it is too large or damaged, or PyAV is needed and not installed.
    """
    if len(files) != 1:
        return _Images(files)
    (file,) = files
    found = next((name for name, start in _FORMATS.items() if re.match(start, file, re.DOTALL)), None)
    if found is None:
        raise MediaRejection(
            "A video is not in a known format. Send an MP4, MOV, WebM, MKV, AVI, GIF or WebP file, or a list of PNG, "
            "JPEG or WebP images."
        )
    if found in _FILMS:
        return Film(file, found)
    return _Animation(file) if found in _ANIMATIONS else _Images(files)


class _Images(Video):
    """An image file for each frame."""

    def __init__(self, files: Sequence[bytes]) -> None:
        if not files:
            raise MediaRejection("A video has no frames. Send at least one.")
        self._files = files
        first = self._image(0)
        self.facts = VideoFacts(len(files), 1.0, first.width, first.height, is_list=True)

    def _distinct(self, indices: Sequence[int]) -> Iterator[Image.Image]:
        for index in indices:
            yield self._of_size(self._image(index))

    def _image(self, index: int) -> Image.Image:
        return decode_image(self._files[index], _STILLS, MAX_PIXELS)


class _Animation(Video):
    """A GIF or WebP file, also with a single frame."""

    def __init__(self, file: bytes) -> None:
        self._file = file
        milliseconds = 0
        with self._opened() as image:
            num_frames: int = getattr(image, "n_frames", 1)
            check_num_frames(num_frames)
            first = in_rgb(image)
            for index in range(num_frames):
                image.seek(index)
                image.load()  # a WebP file's durations are known only then
                milliseconds += image.info.get("duration", 0)
        fps = 1.0 if num_frames == 1 else num_frames * 1000 / milliseconds if milliseconds else UNKNOWN_FPS
        self.facts = VideoFacts(num_frames, fps, first.width, first.height)

    def _distinct(self, indices: Sequence[int]) -> Iterator[Image.Image]:
        with self._opened() as image:
            for index in indices:
                image.seek(index)
                yield self._of_size(in_rgb(image))

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Image.Image]:
        with (
            rejecting_broken_images(_ANIMATIONS, MAX_PIXELS),
            open_image(self._file, _ANIMATIONS, MAX_PIXELS) as image,
        ):
            yield image
