"""The frames of a video are those that its indices say, whatever file it comes in."""

from __future__ import annotations

import contextlib
import io
import sys
import weakref
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from av.stream import Disposition
from PIL import Image

from tests.support.playlists import PLAYLIST, no_visitors
from tokenizer_svc import video_decoder
from tokenizer_svc.av_container import prepare
from tokenizer_svc.film import Film
from tokenizer_svc.media_rejection import MediaRejection
from tokenizer_svc.video import Video, VideoFacts
from tokenizer_svc.video_decoder import open_video

NUM_FRAMES, RATE = 20, 10
WIDTH, HEIGHT = 64, 64
RED, BLUE, WHITE = (255, 0, 0), (0, 0, 255), (255, 255, 255)
MILLISECOND = Fraction(1, 1000)
# By name of the case: encoder, container, and options that make key frames few and frames depend on later ones.
B_FRAMES = {"x264-params": "keyint=6:bframes=2:b-adapt=0:scenecut=0"}
KINDS: dict[str, tuple[str, str, dict[str, str]]] = {
    "H.264 in MP4": ("libx264", "mp4", B_FRAMES),
    "H.264 in MP4 with open groups": ("libx264", "mp4", {"x264-params": "open-gop=1:keyint=6:bframes=3:b-adapt=0"}),
    "H.264 in MP4 with a key frame every two": ("libx264", "mp4", {"x264-params": "keyint=2:bframes=1:b-adapt=0"}),
    "H.264 in MP4 with gradual refreshes": (
        "libx264", "mp4", {"x264-params": "intra-refresh=1:keyint=6:bframes=0:scenecut=0"}
    ),
    "H.264 in MKV": ("libx264", "matroska", B_FRAMES),
    "H.264 in AVI": ("libx264", "avi", B_FRAMES),
    "H.265 in MOV": ("libx265", "mov", {"x265-params": "log-level=none:keyint=6:bframes=2:open-gop=1:scenecut=0"}),
    "MPEG-4 in MOV": ("mpeg4", "mov", {"bf": "2", "g": "6", "b": "2M"}),
    "MPEG-4 in AVI": ("mpeg4", "avi", {"bf": "2", "g": "6", "b": "2M"}),
    "Motion JPEG in AVI": ("mjpeg", "avi", {}),
    "VP8 in WebM": ("libvpx", "webm", {"g": "6", "auto-alt-ref": "1", "lag-in-frames": "10"}),
    "VP9 in WebM": ("libvpx-vp9", "webm", {"g": "6", "auto-alt-ref": "1", "lag-in-frames": "10"}),
    "AV1 in MP4": ("libsvtav1", "mp4", {"g": "6", "preset": "12"}),
}  # fmt: skip


def grays(count: int = NUM_FRAMES) -> list[Image.Image]:
    """Plain images; of each, the gray tells which it is."""
    return [Image.new("RGB", (WIDTH, HEIGHT), (gray, gray, gray)) for gray in range(10, 10 + 12 * count, 12)]


def number(image: Image.Image) -> int:
    """Of a gray image."""
    return round((float(np.asarray(image).mean()) - 10) / 12)


def noise(count: int = 30) -> list[Image.Image]:
    """A view that moves over noise."""
    ground = np.random.default_rng(1).integers(0, 256, (HEIGHT, WIDTH + 2 * count, 3)).astype(np.uint8)
    return [Image.fromarray(ground[:, 2 * each : 2 * each + WIDTH]) for each in range(count)]


def encoded(
    images: Sequence[Image.Image], codec: str, container: str, options: dict[str, str] | None = None, *,
    milliseconds: Sequence[int] = (), turn: tuple[float, bool, bool] | None = None,
    container_options: dict[str, str] | None = None,
) -> bytes:  # fmt: skip
    """The images as a video, shown at these times instead of `RATE` a second."""
    file = io.BytesIO()
    with av.open(file, "w", format=container, options=container_options) as output:
        stream: Any = output.add_stream(codec, rate=RATE, options=options or {})
        stream.width, stream.height = images[0].size
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        if turn:
            stream.set_display_rotation(*turn)
        if milliseconds:
            stream.codec_context.time_base = MILLISECOND
        for each, image in enumerate(images):
            frame = av.VideoFrame.from_image(image)  # type: ignore[no-untyped-call]
            frame.pts = milliseconds[each] if milliseconds else each
            if milliseconds:
                frame.time_base = MILLISECOND
            output.mux(stream.encode(frame))
        output.mux(stream.encode())
    return file.getvalue()


def with_sizes(sizes: Sequence[tuple[int, int]]) -> bytes:
    """A video that changes its size from frame to frame."""
    file = io.BytesIO()
    with av.open(file, "w", format="matroska") as output:
        stream: Any = output.add_stream("mjpeg", rate=RATE)
        (stream.width, stream.height), stream.pix_fmt = sizes[0], "yuvj420p"
        for each, (width, height) in enumerate(sizes):
            encoder: Any = av.CodecContext.create("mjpeg", "w")
            encoder.width, encoder.height, encoder.pix_fmt = width, height, "yuvj420p"
            encoder.time_base = Fraction(1, RATE)
            frame = av.VideoFrame.from_image(Image.new("RGB", (width, height), RED))  # type: ignore[no-untyped-call]
            for packet in [*encoder.encode(frame), *encoder.encode()]:
                packet.stream, packet.time_base, packet.pts, packet.dts = stream, Fraction(1, RATE), each, each
                output.mux(packet)
    return file.getvalue()


def with_sound(picture: bool = False) -> bytes:
    """A file of sound, maybe with a cover picture."""
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as output:
        stream: Any = output.add_stream("aac", rate=8000)
        stream.layout = "mono"
        if picture:
            cover: Any = output.add_stream("mjpeg", rate=1)
            cover.width, cover.height, cover.pix_fmt = WIDTH, HEIGHT, "yuvj420p"
            cover.disposition = Disposition.attached_pic
            image: Any = av.VideoFrame.from_image(grays()[0])  # type: ignore[no-untyped-call]
            output.mux([*cover.encode(image.reformat(format="yuvj420p")), *cover.encode()])
        sound = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        sound.sample_rate = 8000
        output.mux([*stream.encode(sound), *stream.encode()])
    return file.getvalue()


def without_rate(webm: bytes) -> bytes:
    """The file without the field that says how long a frame is shown."""
    field = webm.index(b"\x23\xe3\x83")
    size = 4 + (webm[field + 3] & 0x7F)
    return webm[:field] + bytes([0xEC, 0x80 | (size - 2), *bytes(size - 2)]) + webm[field + size :]


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def animated(images: Sequence[Image.Image], kind: str, **options: Any) -> bytes:
    lossless = {"lossless": True} if kind == "WEBP" else {}
    return saved(images[0], kind, save_all=True, append_images=images[1:], **lossless, **options)


def scanned(file: bytes, container: str) -> list[Image.Image]:
    """All frames, decoded one after the other."""
    with av.open(io.BytesIO(file), "r", format=container) as source:
        return [frame.to_image() for frame in source.decode(video=0)]  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("kind", KINDS)
def test_frames_are_in_order(kind: str) -> None:
    codec, container, options = KINDS[kind]
    video = open_video([encoded(grays(), codec, container, options)])
    assert video.facts == VideoFacts(NUM_FRAMES, RATE, WIDTH, HEIGHT)
    assert video.facts.duration == NUM_FRAMES / RATE
    frames = list(video.frames(range(NUM_FRAMES)))
    assert [number(frame) for frame in frames] == list(range(NUM_FRAMES))
    assert {(frame.mode, frame.size) for frame in frames} == {("RGB", (WIDTH, HEIGHT))}


@pytest.mark.parametrize("kind", KINDS)
def test_frames_are_as_if_all_were_decoded(kind: str) -> None:
    codec, container, options = KINDS[kind]
    file = encoded(noise(), codec, container, options)
    expected = scanned(file, container)
    video = open_video([file])
    assert video.facts.num_frames == len(expected) == 30
    wishes = [[each] for each in range(30)]
    for wish in [*wishes, range(0, 30, 7), [1, 2, 13, 14, 15, 29], [5, 6, 7, 11, 12, 18, 24, 25]]:
        found = list(video.frames(wish))
        assert [frame.tobytes() for frame in found] == [expected[index].tobytes() for index in wish], wish


@pytest.mark.parametrize(
    ("codec", "container", "options"),
    [
        ("libx264", "mp4", {"movflags": "frag_keyframe+empty_moov"}),
        ("libvpx-vp9", "webm", {"live": "1"}),
    ],
    ids=["MP4 in fragments", "WebM as it is recorded"],
)
def test_files_without_a_table_of_their_frames(codec: str, container: str, options: dict[str, str]) -> None:
    file = encoded(grays(), codec, container, {"g": "6"}, container_options=options)
    with av.open(io.BytesIO(file), "r") as source:
        assert source.streams.video[0].frames == 0
    video = open_video([file])
    assert video.facts == VideoFacts(NUM_FRAMES, RATE, WIDTH, HEIGHT)
    assert [number(frame) for frame in video.frames([0, 7, 19])] == [0, 7, 19]


def test_frames_that_were_cut_from_the_beginning_do_not_count() -> None:
    """A file may still hold them, as others depend on them."""
    milliseconds = [100 * each - 500 for each in range(NUM_FRAMES)]
    file = encoded(
        grays(), "libx264", "mp4", milliseconds=milliseconds, container_options={"avoid_negative_ts": "disabled"}
    )
    with av.open(io.BytesIO(file), "r") as source:
        assert len([packet for packet in source.demux(video=0) if packet.size]) == NUM_FRAMES
    video = open_video([file])
    assert video.facts == VideoFacts(15, RATE, WIDTH, HEIGHT)
    assert [number(frame) for frame in video.frames([0, 7, 14])] == [5, 12, 19]


def test_a_title_that_is_no_text() -> None:
    file = encoded(grays(3), "libx264", "mp4")
    named = file.replace(b"VideoHandler", b"Video\xff\xfendler").replace(b"Lavf", b"\xff\xfe\xfd\xfc")
    assert open_video([named]).facts.num_frames == 3
    with pytest.raises(UnicodeDecodeError):
        av.open(io.BytesIO(named), "r")


def test_frames_at_the_same_time_are_counted() -> None:
    """A WebM file has the times in milliseconds."""
    at_once = [each // 2 for each in range(NUM_FRAMES)]
    video = open_video([encoded(grays(), "libvpx", "webm", {"g": "6"}, milliseconds=at_once)])
    assert video.facts.num_frames == NUM_FRAMES
    assert [number(frame) for frame in video.frames([0, 3, 12, 19])] == [0, 3, 12, 19]


def test_threads_are_not_started() -> None:
    """Each takes memory, and there would be one for each processor."""
    video = open_video([encoded(grays(3), "libx264", "mp4")])
    before = len(list(Path("/proc/self/task").iterdir()))
    for _ in video.frames([0, 1, 2]):
        assert len(list(Path("/proc/self/task").iterdir())) == before


def test_repeated_indices_repeat_the_image() -> None:
    video = open_video([encoded(grays(), *KINDS["H.264 in MP4"])])
    frames = list(video.frames([0, 0, 9, 9, 9, 19]))
    assert [number(frame) for frame in frames] == [0, 0, 9, 9, 9, 19]
    assert frames[2] is frames[4]
    assert list(video.frames([])) == []


def test_an_image_is_gone_before_the_next_is_decoded() -> None:
    class Watched(Video):
        def __init__(self) -> None:
            self.kept: list[bool] = []

        def _distinct(self, indices: Sequence[int]) -> Iterator[Image.Image]:
            last: Any = lambda: None  # noqa: E731
            for _ in indices:
                self.kept.append(last() is not None)
                image = Image.new("RGB", (1, 1))
                last = weakref.ref(image)
                yield image
                del image

    video = Watched()
    for frame in video.frames([0, 1, 1, 2]):
        del frame
    assert video.kept == [False] * 3
    decoded = open_video([encoded(grays(), *KINDS["H.264 in MP4"])]).frames([0, 1])
    first = weakref.ref(next(decoded))
    next(decoded)
    assert first() is None


@pytest.mark.parametrize(
    ("milliseconds", "fps"),
    [
        ([100 * each for each in range(20)], 10.0),
        ([1000 * each for each in range(20)], 1.0),
        ([33 * each for each in range(20)], 1000 / 33),
        ([0, 10, 20, 30, *range(1000, 17000, 1000)], 19 / 16),
    ],
    ids=["as declared", "slower than declared", "faster than declared", "varying"],
)
@pytest.mark.parametrize(("codec", "container"), [("libvpx-vp9", "webm"), ("libx264", "mp4")])
def test_frames_a_second_on_average(codec: str, container: str, milliseconds: list[int], fps: float) -> None:
    """A file may declare another number, as `encoded` does."""
    video = open_video([encoded(grays(), codec, container, milliseconds=milliseconds)])
    assert video.facts.fps == pytest.approx(fps, rel=0.05)
    assert [number(frame) for frame in video.frames([0, 3, 4, 19])] == [0, 3, 4, 19]


def test_unknown_frames_a_second() -> None:
    file = without_rate(encoded(grays(1), "libvpx-vp9", "webm"))
    assert open_video([file]).facts == VideoFacts(1, 24.0, WIDTH, HEIGHT)
    assert open_video([animated(grays(3), "GIF", duration=0)]).facts.fps == 24.0


@pytest.mark.parametrize("mirrored", [(False, False), (True, False), (False, True)], ids=str)
@pytest.mark.parametrize("degrees", [0, 90, 180, -90])
@pytest.mark.parametrize("container", ["mp4", "matroska"])
def test_videos_are_upright(container: str, degrees: int, mirrored: tuple[bool, bool]) -> None:
    """PyAV counts as Pillow does, counterclockwise, and mirrors after it has turned."""
    image = Image.new("RGB", (64, 32), BLUE)
    image.paste(RED, (0, 0, 16, 16))
    upright = image.rotate(degrees, expand=True)
    for flip, wanted in zip((Image.Transpose.FLIP_LEFT_RIGHT, Image.Transpose.FLIP_TOP_BOTTOM), mirrored, strict=True):
        upright = upright.transpose(flip) if wanted else upright
    video = open_video([encoded([image] * 3, "libx264", container, turn=(degrees, *mirrored))])
    assert (video.facts.width, video.facts.height) == upright.size
    (frame,) = video.frames([1])
    assert frame.size == upright.size
    assert np.abs(np.asarray(frame).astype(int) - np.asarray(upright)).mean() < 15


def test_a_phone_held_upright() -> None:
    """Its matrix takes what is at the left to the top, and what is at the top to the right: a turn clockwise."""
    image = Image.new("RGB", (64, 32), BLUE)
    image.paste(RED, (0, 0, 16, 16))  # at the top left
    clockwise = encoded([image], "libx264", "mp4", turn=(-90, False, False))
    matrix = np.array([0, 65536, 0, -65536, 0, 0, 0, 0, 2**30], ">i4").tobytes()
    assert matrix in clockwise
    (frame,) = open_video([clockwise]).frames([0])
    assert np.abs(np.asarray(frame)[4, -4].astype(int) - RED).max() < 40


def test_frames_of_other_sizes_are_scaled_like_the_first() -> None:
    video = open_video([with_sizes([(64, 48), (128, 96), (32, 24)])])
    assert video.facts == VideoFacts(3, RATE, 64, 48)
    assert {frame.size for frame in video.frames(range(3))} == {(64, 48)}


@pytest.mark.parametrize("kind", ["GIF", "WEBP"])
def test_animations(kind: str) -> None:
    video = open_video([animated(grays(6), kind, duration=[100, 100, 100, 100, 100, 700])])
    assert video.facts == VideoFacts(6, 5.0, WIDTH, HEIGHT)
    assert [number(frame) for frame in video.frames([0, 2, 2, 5])] == [0, 2, 2, 5]
    assert {(frame.mode, frame.size) for frame in video.frames(range(6))} == {("RGB", (WIDTH, HEIGHT))}


@pytest.mark.parametrize("kind", ["GIF", "WEBP"])
def test_what_is_transparent_is_white(kind: str) -> None:
    glass = [Image.new("RGBA", (8, 4)) for _ in range(3)]
    for each, image in enumerate(glass):
        image.putpixel((each, 0), (*(RED, BLUE, RED)[each], 255))
    video = open_video([animated(glass, kind, duration=50, disposal=2)])
    assert video.facts == VideoFacts(3, 20.0, 8, 4)
    for frame, expected in zip(
        video.frames(range(3)),
        ([RED, WHITE, WHITE, WHITE], [WHITE, BLUE, WHITE, WHITE], [WHITE, WHITE, RED, WHITE]),
        strict=True,
    ):
        assert [frame.getpixel((place, 0)) for place in range(4)] == expected
        assert frame.getpixel((0, 3)) == WHITE


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF"])
def test_a_still_image_is_a_video_of_one_frame(kind: str) -> None:
    video = open_video([saved(grays()[3], kind)])
    assert (video.facts.num_frames, video.facts.fps) == (1, 1.0)
    assert [number(frame) for frame in video.frames([0, 0])] == [3, 3]


def test_a_list_of_images() -> None:
    kinds = ["JPEG", "PNG", "WEBP", "JPEG"]
    video = open_video([saved(image, kind) for image, kind in zip(grays(4), kinds, strict=True)])
    assert video.facts == VideoFacts(4, 1.0, WIDTH, HEIGHT, is_list=True)
    assert [number(frame) for frame in video.frames([0, 1, 1, 2, 3])] == [0, 1, 1, 2, 3]


def test_a_list_of_images_has_one_size_as_they_are_upright() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    wide, turned = saved(Image.new("RGB", (8, 4)), "JPEG"), saved(Image.new("RGB", (4, 8)), "JPEG", exif=exif)
    assert {frame.size for frame in open_video([wide, turned]).frames([0, 1])} == {(8, 4)}
    tall = open_video([wide, saved(Image.new("RGB", (4, 8)), "JPEG")])
    with pytest.raises(MediaRejection, match=r"first frame has 8 x 4 pixels, but another has 4 x 8\. Send frames of"):
        list(tall.frames([0, 1]))


@pytest.mark.parametrize("kind", ["GIF", "BMP"])
def test_a_list_of_other_images_is_refused(kind: str) -> None:
    files = [saved(grays()[0], kind)] * 2
    with pytest.raises(MediaRejection, match="formats: PNG, JPEG, WEBP"):
        open_video(files)


def test_no_frames_at_all() -> None:
    with pytest.raises(MediaRejection, match=r"no frames\. Send at least one"):
        open_video([])


@pytest.mark.parametrize(
    "text",
    [PLAYLIST, "ffconcat version 1.0\nfile {address}\n", "v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\nc={address}\r\n", ""],
    ids=["HLS", "concat", "SDP", "nothing"],
)
def test_playlists_are_not_read(text: str) -> None:
    with no_visitors() as address:
        with pytest.raises(MediaRejection, match=r"not in a known format\. Send an MP4, MOV, WebM, MKV, AVI, GIF"):
            open_video([text.format(address=address).encode()])
        for disguise in (b"\0\0\0\x18ftyp", b"\x1a\x45\xdf\xa3", b"RIFF\0\0\0\0AVI "):
            with pytest.raises(MediaRejection, match=r"A video cannot be decoded|has no pictures"):
                open_video([disguise + text.format(address=address).encode()])


def test_nothing_else_is_opened_even_if_a_file_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(video_decoder, "_FORMATS", {"hls": b"#EXTM3U"})
    monkeypatch.setattr(video_decoder, "_FILMS", ("hls",))
    with pytest.raises(MediaRejection, match=r"cannot be decoded \(PermissionError\)"):
        open_video([PLAYLIST.format(address="part.ts").encode()])


@pytest.mark.parametrize("kind", ["H.264 in MP4", "MPEG-4 in AVI", "VP9 in WebM"])
def test_files_that_are_cut_off(kind: str) -> None:
    codec, container, options = KINDS[kind]
    file = encoded(noise(), codec, container, options)
    with pytest.raises(MediaRejection, match=r"cannot be decoded \(.*\)\. Send a whole file"):
        open_video([file[:100]])
    with contextlib.suppress(MediaRejection):  # a file whose table is at its end has no frames then
        video = open_video([file[: len(file) // 2]])
        assert video.facts.num_frames < 30
        assert len(list(video.frames(range(video.facts.num_frames)))) == video.facts.num_frames


def test_damage_matters_to_the_frames_that_need_it() -> None:
    file = encoded(noise(), *KINDS["H.264 in MP4"])
    with av.open(io.BytesIO(file), "r") as source:
        packets = [packet for packet in source.demux(video=0) if packet.size]
    damaged = packets[8]
    assert damaged.pos is not None
    broken = file[: damaged.pos] + bytes(damaged.size) + file[damaged.pos + damaged.size :]
    expected, video = scanned(file, "mp4"), open_video([broken])
    for index in (3, 13, 25):  # in other groups of six
        (frame,) = video.frames([index])
        assert frame.tobytes() == expected[index].tobytes()
    with pytest.raises(MediaRejection, match=r"cannot be decoded \(InvalidDataError\)\. Send a whole file"):
        list(video.frames([11]))


def with_hidden(file: bytes, frame: int) -> bytes:
    """A VP8 video one of whose frames is marked as not to be shown."""
    with av.open(io.BytesIO(file), "r") as source:
        packets = [(packet.pos, bytes(packet)) for packet in source.demux(video=0) if packet.size]
    position, packet = packets[frame]
    start = file.index(packet, position)
    return file[:start] + bytes([file[start] & ~0x10]) + file[start + 1 :]


def test_hidden_frames_stand_for_the_next() -> None:
    file = encoded(grays(), "libvpx", "webm")
    video = open_video([with_hidden(file, 9)])
    assert video.facts.num_frames == NUM_FRAMES
    for wish, expected in (([8, 9, 10], [8, 10, 10]), ([9], [10]), ([9, 11], [10, 11])):
        assert [number(frame) for frame in video.frames(wish)] == expected
    last = open_video([with_hidden(file, 19)])
    with pytest.raises(MediaRejection, match=r"\(frame 19 of 20 is missing\)"):
        list(last.frames([18, 19]))


@pytest.mark.parametrize("kind", ["GIF", "WEBP"])
def test_animations_that_are_cut_off(kind: str) -> None:
    file = animated(noise(6), kind, duration=50)
    with pytest.raises(MediaRejection, match=r"An image cannot be decoded .* GIF, WEBP"):
        open_video([file[: len(file) // 2]])


@pytest.mark.parametrize("picture", [False, True])
def test_sound_is_no_video(picture: bool) -> None:
    with pytest.raises(MediaRejection, match=r"has no pictures\. Send one that has more than sound"):
        open_video([with_sound(picture)])


@pytest.mark.parametrize(
    ("file", "name"),
    [
        (encoded(grays(2), "mpeg2video", "matroska", {"r": "25"}), "mpeg2video"),
        (encoded(grays(2), "flv1", "avi"), "flv"),
        (encoded(grays(2), "mpeg4", "avi").replace(b"FMP4", b"ZZZZ"), "unknown"),
    ],
    ids=["MPEG-2", "Flash", "unknown"],
)
def test_other_codecs_are_refused(file: bytes, name: str) -> None:
    with pytest.raises(MediaRejection, match=rf"codec, {name}, is not supported\. Use one of H\.264, .*AV1, MPEG-4, M"):
        open_video([file])


def test_too_many_pixels_are_refused_before_they_take_memory() -> None:
    large = Image.new("RGB", (4112, 2304))
    words = r"4112 x 2304 pixels; at most 9437184 are allowed\. Send a smaller"
    for file in (encoded([large], "libx264", "mp4"), animated([large, large], "GIF"), saved(large, "PNG")):
        with pytest.raises(MediaRejection, match=words):
            open_video([file])
    with pytest.raises(MediaRejection, match=words):
        list(open_video([saved(grays()[0], "PNG"), saved(large, "PNG")]).frames([0, 1]))


def test_a_header_that_does_not_tell_the_number_of_pixels() -> None:
    large, words = (4112, 2304), r"frames of too many pixels; at most 9437184 are allowed\. Send a smaller"
    grown = open_video([with_sizes([(64, 48), large])])
    with pytest.raises(MediaRejection, match=words):
        list(grown.frames([1]))
    file = with_sizes([large])
    small = file.replace(b"\xb0\x82\x10\x10", b"\xb0\x82\x00\x40").replace(b"\xba\x82\x09\x00", b"\xba\x82\x00\x40")
    assert small != file
    for each in (small, encoded([Image.new("RGB", large)], "mpeg4", "avi")):
        with pytest.raises(MediaRejection, match=words):
            open_video([each])


def test_too_many_frames_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokenizer_svc.video._MAX_FRAMES", 4)
    enough = [encoded(grays(4), "mpeg4", "mp4"), animated(grays(4), "GIF")]
    assert [open_video([file]).facts.num_frames for file in enough] == [4, 4]
    for file in (encoded(grays(5), "mpeg4", "mp4"), animated(grays(5), "GIF")):
        with pytest.raises(MediaRejection, match=r"more than 4 frames\. Send a shorter one"):
            open_video([file])


def test_running_out_of_memory_is_not_the_file_s_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: Any) -> None:
        raise MemoryError

    video, animation = open_video([encoded(grays(3), "mpeg4", "mp4")]), open_video([animated(grays(3), "GIF")])
    monkeypatch.setattr(Film, "_upright", exhausted)
    monkeypatch.setattr(video_decoder, "in_rgb", exhausted)
    for each in (video, animation):
        with pytest.raises(MemoryError):
            list(each.frames([1]))


def test_without_pyav(monkeypatch: pytest.MonkeyPatch) -> None:
    film, animation = encoded(grays(3), "mpeg4", "mp4"), animated(grays(3), "GIF")
    monkeypatch.setitem(sys.modules, "av", None)
    prepare()
    with pytest.raises(MediaRejection, match=r"installed without quire\[media\]. Install it, or send a GIF"):
        open_video([film])
    assert open_video([animation]).facts.num_frames == 3
