"""The samples of an audio are those of its file, whatever its kind, and hostile files are refused early."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.audio_files import KINDS, RATE, Samples, audio_file, sine, wav_file
from tests.support.films import film
from tests.support.playlists import PLAYLIST, no_visitors
from tests.support.vision_models import random_frames
from tokenizer_svc import audio_decoder
from tokenizer_svc.audio_decoder import decode_audio
from tokenizer_svc.media_rejection import MediaRejection

LONG = 60.0
OPUS_RATE = 48_000


def decoded(file: bytes, rate: int = RATE, most_seconds: float = LONG) -> Samples:
    found = decode_audio(file, rate, most_seconds)
    assert found.dtype == np.float32
    assert found.ndim == 1
    return found


def floats(values: Any, **header: int) -> bytes:
    """A WAV file of floating-point samples."""
    return wav_file(np.asarray(values, np.float32).tobytes(), bits=32, form=3, **header)


def likeness(found: Samples, wanted: Samples) -> float:
    """The correlation, apart from edges, and from what codecs put before."""
    if len(found) > len(wanted) + RATE // 20:
        found = found[np.correlate(found, wanted[:8000], "valid").argmax() :]
    length = min(len(found), len(wanted)) - 400
    return float(np.corrcoef(found[400:length], wanted[400:length])[0, 1])


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_files(kind: str) -> None:
    rate = OPUS_RATE if KINDS[kind][1] == "libopus" else RATE
    tone = sine(1.0, rate=rate)
    found = decoded(audio_file(np.stack([tone, tone]), kind, rate))
    assert len(found) == pytest.approx(RATE, abs=1500)
    assert likeness(found, sine(1.0)) > 0.99
    assert np.abs(found).std() == pytest.approx(np.abs(tone).std(), rel=0.15)


@pytest.mark.parametrize("kind", ["wav", "flac"])
@pytest.mark.parametrize("rate", [8_000, 16_000, 22_050, 44_100, 48_000])
def test_rates(kind: str, rate: int) -> None:
    found = decoded(audio_file(sine(0.5, rate=rate), kind, rate))
    assert len(found) == RATE // 2
    assert likeness(found, sine(0.5)) > 0.98
    assert len(decoded(audio_file(sine(0.5), kind), 8_000)) == 4_000


def test_channels_become_their_mean() -> None:
    left, right = sine(0.2), sine(0.2, 1000.0, seed=1)
    assert np.allclose(decoded(audio_file(np.stack([left, right]), "wavf")), (left + right) / 2, atol=1e-6)
    many = np.arange(64, dtype=np.float32) / 64
    assert np.allclose(decoded(floats(np.tile(many, 100), channels=64)), many.mean(), atol=1e-6)


def test_samples_of_uncompressed_files_are_kept() -> None:
    tone = sine(0.3)
    assert np.array_equal(decoded(audio_file(tone, "wavf")), tone)
    assert np.abs(decoded(audio_file(tone, "wav")) - tone).max() <= 2**-15
    assert np.array_equal(decoded(floats([0.5])), np.array([0.5], np.float32))


def test_the_sound_of_a_video() -> None:
    assert likeness(decoded(audio_file(sine(1.0), "mp4")), sine(1.0)) > 0.99


@pytest.mark.parametrize("kind", ["wav", "mp3", "flac", "m4a"])
def test_too_long(kind: str) -> None:
    words = r"The audio is longer than 1 s, the most that this model takes\. Send a shorter one, or several parts"
    assert len(decoded(audio_file(sine(1.0), kind), most_seconds=1)) == RATE
    with pytest.raises(MediaRejection, match=words):
        decoded(audio_file(sine(1.3), kind), most_seconds=1)


def test_decoding_stops_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, real = [], audio_decoder._check_form

    def note(rate: int, channels: int) -> None:
        seen.append(rate)
        real(rate, channels)

    monkeypatch.setattr(audio_decoder, "_check_form", note)
    with pytest.raises(MediaRejection, match="longer than 1 s"):
        decoded(audio_file(np.zeros(RATE * 600, np.float32), "flac"), most_seconds=1)
    assert len(seen) < 30  # of thousands


@pytest.mark.parametrize("kind", ["wav", "mp3", "opus", "webm", "flac", "aac"])
def test_files_that_are_cut_off(kind: str) -> None:
    """They give what they have, unless a packet of theirs is cut off."""
    rate = OPUS_RATE if KINDS[kind][1] == "libopus" else RATE
    file = audio_file(sine(2.0, rate=rate), kind, rate)
    if kind in ("wav", "mp3", "webm"):
        assert 0.3 * RATE < len(decoded(file[: len(file) // 2])) < 1.7 * RATE
    else:
        with pytest.raises(MediaRejection, match=r"cannot be decoded \(.+\)\. Send a whole file, best a WAV or FLAC"):
            decoded(file[: len(file) // 2])


NOTHING: dict[str, bytes] = {
    "M4A cut off": audio_file(sine(1.0), "m4a")[:3000], "M4A": b"\0\0\0\x18ftypM4A ", "Ogg": b"OggS" + bytes(200),
    "MP3 of tags": b"ID3\x04\0\0\0\0\0\x7f" + bytes(200), "MP3": b"\xff\xfb" + bytes(100),
    "FLAC": b"fLaC" + bytes(100), "AAC": b"\xff\xf1" + bytes(100), "WebM": b"\x1a\x45\xdf\xa3" + bytes(100),
    "WAV": b"RIFF\0\0\0\0WAVE", "WAV of no samples": wav_file(b""), "WAV of no rate": wav_file(bytes(100), rate=0),
}  # fmt: skip


@pytest.mark.parametrize("kind", NOTHING)
def test_files_with_nothing_in_them(kind: str) -> None:
    words = r"The audio (cannot be decoded \(.+\)\. Send a whole|file has no sound|has 0 channels of 0 samples)"
    with pytest.raises(MediaRejection, match=words):
        decoded(NOTHING[kind])


@pytest.mark.parametrize("file", [b"", b"sound", b"GIF89a", b"\x89PNG", b"#EXTM3U\n"])
def test_unknown_formats(file: bytes) -> None:
    with pytest.raises(MediaRejection, match=r"The audio is not in a known format\. Send a WAV, MP3, FLAC, Ogg"):
        decoded(file)


def test_a_video_without_sound() -> None:
    with pytest.raises(MediaRejection, match=r"has no sound\. Send one that has more than pictures"):
        decoded(film(random_frames(64, 64, 3, 1)))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1001.0, -1e30])
@pytest.mark.parametrize("channels", [1, 2])
def test_samples_that_are_no_sound(value: float, channels: int) -> None:
    samples = np.zeros(2000, np.float32)
    samples[700] = value
    with pytest.raises(MediaRejection, match=r"samples that are not numbers from -1000 to 1000\. Send samples from"):
        decoded(floats(samples, channels=channels))
    opposite = np.zeros(2000, np.float32)
    opposite[700:702] = np.inf, -np.inf
    with pytest.raises(MediaRejection, match="not numbers"):
        decoded(floats(opposite, channels=2))


def test_loud_samples_are_taken() -> None:
    assert decoded(floats(np.full(2000, 999.0))).max() == 999.0


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ({"rate": 1}, "1 channels of 1 samples a second; there may be 1 to 64 channels of 4000 to 384000"),
        ({"rate": 3_999}, "of 3999 samples a second"),
        ({"rate": 768_000}, "of 768000 samples a second"),
        ({"channels": 65}, "65 channels of 16000"),
    ],
)
def test_forms_that_would_take_too_much(header: dict[str, int], words: str) -> None:
    with pytest.raises(MediaRejection, match=words):
        decoded(wav_file(bytes(65 * 2 * 100), **header))


def test_frames_of_another_form_than_the_file_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audio_decoder, "_stream", lambda container: container.streams.audio[0])
    with pytest.raises(MediaRejection, match="of 3999 samples"):
        decoded(wav_file(bytes(1000), rate=3_999))


def test_a_file_that_changes_its_form() -> None:
    """It is refused, or decoded with the form that it begins with."""
    file = audio_file(sine(1.0, rate=44_100), "mp3", 44_100) + audio_file(sine(1.0, rate=22_050), "mp3", 22_050)
    with contextlib.suppress(MediaRejection):
        assert len(decoded(file)) < 3 * RATE


def test_chained_files_go_on() -> None:
    file = audio_file(sine(1.0, rate=OPUS_RATE), "opus", OPUS_RATE)
    assert len(decoded(file * 2)) == pytest.approx(2 * RATE, abs=1500)


@pytest.mark.parametrize(
    ("file", "name"),
    [(wav_file(bytes(4000), bits=4, form=2), "adpcm_ms"), (wav_file(bytes(4000), form=0x7777), "unknown")],
    ids=["ADPCM", "unknown"],
)
def test_other_codecs_are_refused(file: bytes, name: str) -> None:
    with pytest.raises(MediaRejection, match=rf"The audio's codec, {name}, is not supported\. Use one of MP3, FLAC,"):
        decoded(file)


@pytest.mark.parametrize(
    "text", [PLAYLIST, "ffconcat version 1.0\nfile {address}\n", "v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\nc={address}\r\n"],
    ids=["HLS", "concat", "SDP"],
)  # fmt: skip
def test_playlists_are_not_read(text: str) -> None:
    with no_visitors() as address:
        with pytest.raises(MediaRejection, match="not in a known format"):
            decoded(text.format(address=address).encode())
        for disguise in (b"\0\0\0\x18ftyp", b"\x1a\x45\xdf\xa3", b"ID3\x04\0\0\0\0\0\0", b"OggS", b"RIFF\0\0\0\0WAVE"):
            with pytest.raises(MediaRejection, match=r"cannot be decoded|has no sound"):
                decoded(disguise + text.format(address=address).encode())


def test_nothing_else_is_opened_even_if_a_file_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audio_decoder, "_FORMATS", {"hls": b"#EXTM3U"})
    with pytest.raises(MediaRejection, match=r"cannot be decoded \(PermissionError\)"):
        decoded(PLAYLIST.format(address="part.ts").encode())


def test_a_title_that_is_no_text() -> None:
    file = audio_file(sine(0.5), "mp3").replace(b"Lavf", b"\xff\xfe\xfd\xfc")
    assert len(decoded(file)) >= RATE // 2


def test_threads_are_not_started() -> None:
    """Each takes memory, and there would be one for each processor."""
    file, before = audio_file(sine(0.5), "flac"), len(list(Path("/proc/self/task").iterdir()))
    decoded(file)
    assert len(list(Path("/proc/self/task").iterdir())) == before


def test_running_out_of_memory_is_not_the_file_s_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(audio_decoder, "_check_form", exhausted)
    with pytest.raises(MemoryError):
        decoded(audio_file(sine(0.1)))


def test_without_pyav(monkeypatch: pytest.MonkeyPatch) -> None:
    file = audio_file(sine(0.1))
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(MediaRejection, match=r"The audio cannot be read: .* without quire\[media\]\. Install it\.$"):
        decoded(file)


def test_pyav_is_imported_when_it_is_wanted() -> None:
    script = """
import sys
from tokenizer_svc import av_container, audio_decoder, film, video_decoder
assert "av" not in sys.modules
av_container.prepare()
assert "av" in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True)
