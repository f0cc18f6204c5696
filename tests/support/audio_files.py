"""Audio files made of samples."""

from __future__ import annotations

import io
import struct
from typing import Any

import av
import numpy as np
import numpy.typing as npt

RATE = 16_000

Samples = npt.NDArray[np.float32]

# By a name of the kind: FFmpeg's names of the container and the encoder.
KINDS: dict[str, tuple[str, str]] = {
    "wav": ("wav", "pcm_s16le"), "wav24": ("wav", "pcm_s24le"), "wav32": ("wav", "pcm_s32le"),
    "wavf": ("wav", "pcm_f32le"), "wavd": ("wav", "pcm_f64le"), "wav8": ("wav", "pcm_u8"),
    "mulaw": ("wav", "pcm_mulaw"), "alaw": ("wav", "pcm_alaw"), "flac": ("flac", "flac"),
    "mp3": ("mp3", "libmp3lame"), "opus": ("ogg", "libopus"), "vorbis": ("ogg", "vorbis"),
    "oggflac": ("ogg", "flac"), "m4a": ("ipod", "aac"), "alac": ("ipod", "alac"), "mp4": ("mp4", "aac"),
    "aac": ("adts", "aac"), "webm": ("webm", "libopus"),
}  # fmt: skip


def sine(seconds: float, frequency: float = 440.0, rate: int = RATE, seed: int = 0) -> Samples:
    """A tone with a little noise: [samples]."""
    times = np.arange(int(seconds * rate)) / rate
    noise = np.random.default_rng(seed).standard_normal(len(times))
    return (0.3 * np.sin(2 * np.pi * frequency * times) + 0.02 * noise).astype(np.float32)


def audio_file(samples: Samples, kind: str = "wav", rate: int = RATE) -> bytes:
    """A file with the samples [samples], or [channels, samples] for one or two channels, as well as the codec keeps
    them.

    Args:
        kind: one of KINDS. Vorbis needs two channels.
    """
    container, codec = KINDS[kind]
    channels = np.atleast_2d(samples)
    layout = "mono" if len(channels) == 1 else "stereo"
    frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(channels), format="fltp", layout=layout)
    frame.sample_rate, frame.pts = rate, 0
    file = io.BytesIO()
    with av.open(file, "w", format=container) as output:
        stream: Any = output.add_stream(codec, rate=rate, layout=layout, options={"strict": "-2"})  # for Vorbis
        encoder = stream.codec_context
        resampler = av.AudioResampler(
            format=encoder.format, layout=layout, rate=rate, frame_size=encoder.frame_size or 1024
        )
        for each in [*resampler.resample(frame), *resampler.resample(None)]:
            output.mux(stream.encode(each))
        output.mux(stream.encode(None))
    return file.getvalue()


def wav_file(data: bytes, rate: int = RATE, channels: int = 1, bits: int = 16, form: int = 1) -> bytes:
    """A WAV file whose header says what it is told, whether it is true or not.

    Args:
        form: 1 for whole numbers, 3 for floating-point ones.
    """
    size = channels * bits // 8
    header = struct.pack("<IHHIIHH", 16, form, channels, rate, min(rate * size, 2**32 - 1), size, bits)
    return (
        b"RIFF" + struct.pack("<I", 36 + len(data)) + b"WAVEfmt " + header + b"data" + struct.pack("<I", len(data))
        + data
    )  # fmt: skip
