"""Images, videos and audio within the request, and URLs of a kind that is not accepted."""

from __future__ import annotations

import asyncio
import base64
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.media.fetch import MediaFetcher
from gateway.media.source import MediaSource
from quire.errors import InvalidRequest
from quire.media import MAX_FILE_BYTES, MediaKind
from quire.options.media import MediaOptions

PLACE = "messages[0].content[1]"
IMAGE = bytes(range(256))
ENCODED = base64.b64encode(IMAGE).decode()


async def files_of(url: str, kind: MediaKind = MediaKind.VIDEO) -> tuple[bytes, ...]:
    return await MediaFetcher(MediaOptions()).fetch(MediaSource(url, PLACE, kind))


async def fetched(url: str, kind: MediaKind = MediaKind.IMAGE) -> bytes:
    (file,) = await files_of(url, kind)
    return file


async def refusal(url: str, kind: MediaKind = MediaKind.IMAGE) -> str:
    with pytest.raises(InvalidRequest) as caught:
        await fetched(url, kind)
    assert caught.value.parameter == "messages"
    assert PLACE in caught.value.message
    return caught.value.message


@pytest.mark.parametrize(
    "head",
    ["data:image/png;base64,", "data:image/svg+xml;charset=utf-8;base64,", "data:image/*;base64,", "data:;base64,",
     "DATA:IMAGE/PNG;BASE64,"],
)  # fmt: skip
async def test_an_image_within_the_request(head: str) -> None:
    assert await fetched(head + ENCODED) == IMAGE


@pytest.mark.parametrize(
    "url",
    [
        f"data:text/plain;base64,{ENCODED}",
        f"data:video/mp4;base64,{ENCODED}",
        f"data:video/jpeg;base64,{ENCODED}",
        f"data:image/png,{ENCODED}",
        f"data:image/png;base64;{ENCODED}",
        f"data:image/png;name={'A' * 300};base64,{ENCODED}",
        f"data:{ENCODED}",
    ],
)
async def test_a_data_url_that_is_no_image_in_base64(url: str) -> None:
    message = await refusal(url)
    assert "data:image/png;base64," in message
    assert ENCODED[:20] not in message


@pytest.mark.parametrize(
    "data",
    [ENCODED[:-1], ENCODED + "=", f"{ENCODED[:8]}\n{ENCODED[8:]}", f" {ENCODED}", "AA==" + ENCODED, "_-_-", "QUJ%44",
     "QUJé", "=", "A" * 100_001, "A" * 80_000 + "\n"],
)  # fmt: skip
async def test_malformed_base64(data: str) -> None:
    message = await refusal(f"data:image/png;base64,{data}")
    assert "not valid base64" in message
    assert data[:20] not in message or len(data) < 5


@pytest.mark.parametrize("kind", MediaKind)
async def test_a_large_file_within_the_request(kind: MediaKind) -> None:
    most = MAX_FILE_BYTES[kind]
    for extra in (0, 1, 3):
        url = f"data:;base64,{base64.b64encode(bytes(most + extra)).decode()}"
        if extra:
            assert str(most) in await refusal(url, kind)
        else:
            assert await fetched(url, kind) == bytes(most)


@pytest.mark.parametrize(
    "head",
    ["data:video/mp4;base64,", "data:video/webm;codecs=vp9;base64,", "data:video/*;base64,", "data:;base64,",
     "data:image/gif;base64,", "data:image/jpeg;base64,", "data:video/jpeg;base64,", "DATA:VIDEO/MP4;BASE64,"],
)  # fmt: skip
async def test_a_video_within_the_request(head: str) -> None:
    assert await fetched(head + ENCODED, MediaKind.VIDEO) == IMAGE


@pytest.mark.parametrize("head", ["data:text/plain;base64,", "data:audio/mp4;base64,", "data:video/mp4,"])
async def test_a_data_url_that_is_no_video_in_base64(head: str) -> None:
    assert "must begin like data:video/mp4;base64, and" in await refusal(head + ENCODED, MediaKind.VIDEO)


@pytest.mark.parametrize(
    "head",
    ["data:audio/wav;base64,", "data:audio/ogg;codecs=opus;base64,", "data:audio/*;base64,", "data:;base64,",
     "data:video/webm;base64,", "data:video/mp4;base64,", "data:audio/x-wav;base64,", "DATA:AUDIO/MPEG;BASE64,"],
)  # fmt: skip
async def test_an_audio_within_the_request(head: str) -> None:
    assert await fetched(head + ENCODED, MediaKind.AUDIO) == IMAGE


@pytest.mark.parametrize("head", ["data:text/plain;base64,", "data:image/gif;base64,", "data:audio/wav,"])
async def test_a_data_url_that_is_no_audio_in_base64(head: str) -> None:
    assert "must begin like data:audio/wav;base64, and" in await refusal(head + ENCODED, MediaKind.AUDIO)


async def test_an_audio_has_no_frames() -> None:
    assert "is not valid base64" in await refusal(f"data:video/jpeg;base64,{ENCODED},{ENCODED}", MediaKind.AUDIO)


@pytest.mark.parametrize("kind", ["video/jpeg", "video/png", "video/webp", "Video/JPEG"])
async def test_a_video_may_be_a_list_of_frames(kind: str) -> None:
    assert await files_of(f"data:{kind};base64,{ENCODED},AAAA,AA==") == (IMAGE, bytes(3), bytes(1))


@pytest.mark.parametrize("kind", ["video/mp4", "video/gif", "image/jpeg", "image/gif"])
async def test_videos_of_other_types_are_one_file(kind: str) -> None:
    assert "is not valid base64" in await refusal(f"data:{kind};base64,{ENCODED},{ENCODED}", MediaKind.VIDEO)


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        ("AAAA,AA=,AAAA", "is not valid base64 (Incorrect padding, in frame 1)"),
        ("AAAA,,AAAA", "has a frame that is empty"),
        ("AAAA,", "has a frame that is empty"),
        (",".join(["AAAA"] * 769), "has 769 frames; at most 768 are allowed"),
        (f"AAAA,data:image/jpeg;base64,{ENCODED}", "in frame 1"),
    ],
)
async def test_malformed_lists_of_frames(frames: str, words: str) -> None:
    assert words in await refusal(f"data:video/jpeg;base64,{frames}", MediaKind.VIDEO)


async def test_the_size_of_all_frames() -> None:
    most, count = MAX_FILE_BYTES[MediaKind.VIDEO], 768
    size = most // count
    sizes = [size] * (count - 1) + [most - size * (count - 1)]
    frames = [base64.b64encode(bytes(each)).decode() for each in sizes]
    assert list(map(len, await files_of(f"data:video/jpeg;base64,{','.join(frames)}"))) == sizes
    frames[0] = base64.b64encode(bytes(size + 1)).decode()
    assert f"{most} bytes allowed for a video" in await refusal(
        f"data:video/jpeg;base64,{','.join(frames)}", MediaKind.VIDEO
    )
    assert str(most) in await refusal("data:video/jpeg;base64," + "A" * (2 * most), MediaKind.VIDEO)


async def test_large_images_are_decoded_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = []

    async def to_thread(work: object, source: MediaSource, texts: list[str]) -> tuple[bytes, ...]:
        decoded.extend(texts)
        return (b"image",)

    monkeypatch.setattr(asyncio, "to_thread", to_thread)
    await fetched(f"data:image/png;base64,{ENCODED}")
    assert not decoded
    await fetched("data:image/png;base64," + "A" * 70_000)
    assert decoded == ["A" * 70_000]


async def test_an_empty_image() -> None:
    assert "is empty" in await refusal("data:image/png;base64,")


@pytest.mark.parametrize("url", ["ftp://a.example/b", "javascript:1", "blob:https://a.example/1", "HTTPX://a.example"])
async def test_another_scheme(url: str) -> None:
    message = await refusal(url)
    assert "data:video/mp4;base64,…" in await refusal(url, MediaKind.VIDEO)
    assert repr(url.partition(":")[0].lower()) in message
    for accepted in ("data:image/png;base64", "https://", "file://", "--allowed-media-domains",
                     "--allowed-local-media-path"):  # fmt: skip
        assert accepted in message


@pytest.mark.parametrize("url", ["", "cat.png", "//a.example/b", f" data:image/png;base64,{ENCODED}", ENCODED, ":"])
async def test_what_is_no_url(url: str) -> None:
    message = await refusal(url)
    assert "is not a URL" in message
    assert ENCODED[:20] not in message


@pytest.mark.parametrize("url", ["http://127.0.0.1/cat.png", "https://a.example/cat.png", "HTTP://a.example/"])
async def test_nothing_is_fetched_by_default(url: str) -> None:
    assert "--allowed-media-domains" in await refusal(url)


def test_httpx_is_loaded_only_when_hosts_are_allowed() -> None:
    code = (
        "import sys, gateway.media.fetch as fetch, quire.options.media as media; "
        "fetch.MediaFetcher(media.MediaOptions()); assert 'httpx' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[3], check=True, timeout=60)
