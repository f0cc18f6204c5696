"""Images within the request, and URLs of a kind that is not accepted."""

from __future__ import annotations

import asyncio
import base64
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.media.fetch import MediaFetcher
from quire.errors import InvalidRequest
from quire.images import MAX_IMAGE_BYTES
from quire.options.media import MediaOptions

PLACE = "messages[0].content[1]"
IMAGE = bytes(range(256))
ENCODED = base64.b64encode(IMAGE).decode()


async def fetched(url: str) -> bytes:
    return await MediaFetcher(MediaOptions()).fetch(url, PLACE)


async def refusal(url: str) -> str:
    with pytest.raises(InvalidRequest) as caught:
        await fetched(url)
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


async def test_a_large_image_within_the_request() -> None:
    image = bytes(MAX_IMAGE_BYTES)
    encoded = base64.b64encode(image).decode()
    assert await fetched(f"data:image/png;base64,{encoded}") == image
    assert str(MAX_IMAGE_BYTES) in await refusal(f"data:image/png;base64,{encoded}AAAA")


async def test_large_images_are_decoded_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = []

    async def to_thread(work: object, data: str, **_: object) -> bytes:
        decoded.append(data)
        return b"image"

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
