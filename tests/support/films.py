"""Video files made of images, and the frames that they have."""

from __future__ import annotations

import io
from collections.abc import Sequence
from fractions import Fraction

import av
from PIL import Image

from tests.support.audio_files import RATE, Samples


def film(
    frames: Sequence[Image.Image], *, codec: str = "mpeg4", container: str = "mp4", fps: int = 10,
    sound: Samples | None = None,
) -> bytes:  # fmt: skip
    """A video file with the frames, as well as the codec keeps them, and with the sound as it is (not in MP4)."""
    file = io.BytesIO()
    with av.open(file, "w", format=container) as output:
        stream = output.add_stream(codec, rate=Fraction(fps))
        stream.width, stream.height = frames[0].size
        stream.pix_fmt = "yuv420p"
        heard = None if sound is None else output.add_stream("pcm_f32le", rate=RATE, layout="mono")
        for frame in frames:
            output.mux(stream.encode(av.VideoFrame.from_image(frame)))
        output.mux(stream.encode())
        if heard is not None and sound is not None:
            samples = av.AudioFrame.from_ndarray(sound[None], format="flt", layout="mono")
            samples.sample_rate, samples.pts = RATE, 0
            output.mux(heard.encode(samples))
            output.mux(heard.encode())
    return file.getvalue()


def frames_of(file: bytes) -> list[Image.Image]:
    """All frames of a video file."""
    with av.open(io.BytesIO(file)) as opened:
        return [frame.to_image() for frame in opened.decode(video=0)]
