"""Audio files in, samples of one channel out.

Runs in a process of its own (see `media_process`), because audio of a few kilobytes can last for days.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from quire.pcm import Pcm
from tokenizer_svc.av_container import broken, check_codec, opened
from tokenizer_svc.media_rejection import MediaRejection

if TYPE_CHECKING:
    from av.audio.frame import AudioFrame
    from av.audio.stream import AudioStream
    from av.container import InputContainer

Samples = npt.NDArray[np.float32]

# How files begin, by FFmpeg's name of the format.
_FORMATS = {
    "wav": rb"RIFF....WAVE", "flac": rb"fLaC", "ogg": rb"OggS", "mp3": rb"ID3|\xFF[\xE2-\xE7\xF2-\xF7\xFA-\xFF]",
    "aac": rb"\xFF[\xF0\xF1\xF8\xF9]", "mov": rb"....ftyp", "matroska": rb"\x1A\x45\xDF\xA3",
    "avi": rb"RIFF....AVI ",
}  # fmt: skip
_PCM = ("pcm_s16le", "pcm_s24le", "pcm_s32le", "pcm_f32le", "pcm_f64le", "pcm_u8")
# By FFmpeg's name.
_CODECS = {
    "mp3float": "MP3", "mp3": "MP3", "flac": "FLAC", "vorbis": "Vorbis", "opus": "Opus", "libopus": "Opus",
    "aac": "AAC", "alac": "ALAC", **dict.fromkeys(_PCM, "PCM"), "pcm_mulaw": "μ-law", "pcm_alaw": "A-law",
}  # fmt: skip
_LEAST_RATE, _GREATEST_RATE = 4_000, 384_000  # samples a second of a file, which are brought to another rate
_MAX_CHANNELS = 64
_SCALE = 2**15  # of samples as whole numbers
_MAX_PEAK = 1000.0  # of samples, which are from -1 to 1 in files that are not floating-point
FILLING_SECONDS = 0.1  # beyond the limit that are cut off, as codecs fill the last of their frames
_WHAT, _BEST = "The audio", "a WAV or FLAC"


def decode_audio(file: bytes, rate: int, most_seconds: float) -> Samples:
    """The samples of an audio file, or of a video's sound: the mean of all channels.

    Args:
        rate: samples a second of the result.
        most_seconds: how long it may be.

    Returns: [samples], at least one; from -1 to 1, unless a floating-point file says otherwise.

    Raises:
        MediaRejection: it is no audio, it is too long, empty or damaged, or PyAV is not installed.
    """
    pieces = [*_decoded(file, rate, most_seconds, f"{most_seconds:g} s, the most that this model takes")]
    return np.concatenate(pieces)[: int(most_seconds * rate)]


def decode_long_audio(file: bytes, rate: int, most_seconds: float) -> Pcm:
    """The samples of a recording that is to be cut: those of `decode_audio` as whole numbers, of which two hours fit in
    the process's memory.

    Args:
        rate, most_seconds: see `decode_audio`.

    Raises:
        MediaRejection: see `decode_audio`.
    """
    most = f"{most_seconds / 3600:g} hours" if most_seconds >= 3600 else f"{most_seconds:g} s"
    found = bytearray()
    for piece in _decoded(file, rate, most_seconds, f"{most}, the most that this server cuts into pieces"):
        found += np.clip(np.rint(piece * _SCALE), -_SCALE, _SCALE - 1).astype(np.int16).tobytes()
    return np.frombuffer(found, np.int16)[: int(most_seconds * rate)]


def has_sound(file: bytes) -> bool:
    """Whether a file is one that has sound; images and animations have none.

    Raises:
        MediaRejection: it is damaged, or PyAV is not installed.
    """
    if (found := _format_of(file)) is None:
        return False
    with opened(file, found, _CODECS, what=_WHAT, best=_BEST) as container:
        return bool(container.streams.audio)


def _format_of(file: bytes) -> str | None:
    """FFmpeg's name of the format; None if it is none of those that are read."""
    return next((name for name, start in _FORMATS.items() if re.match(start, file, re.DOTALL)), None)


def _decoded(file: bytes, rate: int, most_seconds: float, most: str) -> Iterator[Samples]:
    """The samples piece by piece, at least one in all; see `decode_audio`.

    Args:
        most: the limit and whose it is, in the message.
    """
    if (found := _format_of(file)) is None:
        raise MediaRejection(
            f"{_WHAT} is not in a known format. Send a WAV, MP3, FLAC, Ogg, M4A, AAC, MP4 or WebM file."
        )
    count, limit = 0, int(most_seconds * rate) + int(FILLING_SECONDS * rate)
    with opened(file, found, _CODECS, what=_WHAT, best=_BEST) as container:
        for piece in _resampled(container, rate):
            count += len(piece)
            if count > limit:
                raise MediaRejection(f"{_WHAT} is longer than {most}. Send a shorter one, or several parts.")
            yield piece
    if not count:
        raise broken(_WHAT, "it has no samples", _BEST)


def _resampled(container: InputContainer, rate: int) -> Iterator[Samples]:
    """The samples at another rate, piece by piece."""
    from av import AudioResampler

    # With packed floats and all channels: FFmpeg's own way to one channel would make stereo louder, and PyAV crashes on
    # planes of eight channels and more.
    resampler = AudioResampler(format="flt", layout=None, rate=rate)
    for frame in _frames(container):
        for each in resampler.resample(frame):
            values = each.to_ndarray().reshape(-1, each.layout.nb_channels)
            if not np.abs(values).max(initial=0.0) <= _MAX_PEAK:  # nor if it is not a number
                raise MediaRejection(
                    f"{_WHAT} has samples that are not numbers from -{_MAX_PEAK:g} to {_MAX_PEAK:g}. Send samples from "
                    "-1 to 1, or whole numbers."
                )
            yield values.mean(axis=1)


def _frames(container: InputContainer) -> Iterator[AudioFrame | None]:
    """The decoded frames, then None, which has the resampler give what it still holds."""
    stream = _stream(container)
    for frame in container.decode(stream):
        _check_form(frame.sample_rate, frame.layout.nb_channels)
        frame.pts = None  # gaps and overlaps in a file's times are not filled or cut
        yield frame
    yield None


def _stream(container: InputContainer) -> AudioStream:
    """The first stream with sound, ready to be decoded."""
    if not container.streams.audio:
        raise MediaRejection(f"{_WHAT} file has no sound. Send one that has more than pictures.")
    stream = container.streams.audio[0]
    check_codec(stream, _CODECS, f"{_WHAT}'s")
    _check_form(stream.rate, stream.channels)
    return stream


def _check_form(rate: int, channels: int) -> None:
    """
    Raises:
        MediaRejection: there are so few samples a second that they would become many more, or too many channels.
    """
    if not (_LEAST_RATE <= rate <= _GREATEST_RATE and 1 <= channels <= _MAX_CHANNELS):
        raise MediaRejection(
            f"{_WHAT} has {channels} channels of {rate} samples a second; there may be 1 to {_MAX_CHANNELS} channels "
            f"of {_LEAST_RATE} to {_GREATEST_RATE}."
        )
