"""Video files made of images, and the frames that they have."""

from __future__ import annotations

import io
from collections.abc import Sequence
from fractions import Fraction

import av
from PIL import Image


def film(frames: Sequence[Image.Image], *, codec: str = "mpeg4", container: str = "mp4", fps: int = 10) -> bytes:
    """A video file with the frames, as well as the codec keeps them."""
    file = io.BytesIO()
    with av.open(file, "w", format=container) as output:
        stream = output.add_stream(codec, rate=Fraction(fps))
        stream.width, stream.height = frames[0].size
        stream.pix_fmt = "yuv420p"
        for frame in frames:
            output.mux(stream.encode(av.VideoFrame.from_image(frame)))
        output.mux(stream.encode())
    return file.getvalue()


def frames_of(file: bytes) -> list[Image.Image]:
    """All frames of a video file."""
    with av.open(io.BytesIO(file)) as opened:
        return [frame.to_image() for frame in opened.decode(video=0)]
