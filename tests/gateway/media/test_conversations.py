"""Which images a conversation may have, and which settings for them a request may bring."""

from __future__ import annotations

import asyncio
import base64
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gateway.media.conversations import ConversationImages
from gateway.requests.messages import ImageUrl
from quire.errors import InvalidRequest
from quire.options.media import MediaOptions

FILES = (b"first", b"second", b"third")


def named(*files: bytes) -> list[ImageUrl]:
    """Images within the request."""
    return [
        ImageUrl(f"data:image/png;base64,{base64.b64encode(file).decode()}", f"messages[0].content[{index}]")
        for index, file in enumerate(files)
    ]


async def refusal(images: ConversationImages, given: list[ImageUrl], *, are_accepted: bool = True) -> str:
    with pytest.raises(InvalidRequest) as caught:
        await images.read(given, are_accepted=are_accepted)
    assert caught.value.parameter == "messages"
    return caught.value.message


async def test_files_come_in_the_order_of_their_names(tmp_path: Path) -> None:
    (tmp_path / "file.png").write_bytes(b"from a file")
    images = ConversationImages(MediaOptions(allowed_local_media_path=str(tmp_path)))
    first, *others = named(*FILES)
    local = ImageUrl(f"file://{tmp_path}/file.png", "messages[1].content[0]")
    assert await images.read([first, local, *others], are_accepted=True) == [FILES[0], b"from a file", *FILES[1:]]


async def test_a_model_may_read_text_only() -> None:
    images = ConversationImages(MediaOptions())
    assert await images.read([], are_accepted=False) == []
    told = await refusal(images, named(*FILES), are_accepted=False)
    assert told == "messages[0].content[0] is an image, but this model reads text only."


@pytest.mark.parametrize(
    ("limit", "most"), [("image=2", 2), ('{"image": 1, "video": 5}', 1), ("images=0", 0), ("video=0", 3)]
)
async def test_the_number_of_images(limit: str, most: int) -> None:
    images = ConversationImages(MediaOptions(limit_mm_per_prompt=limit))
    assert await images.read(named(*FILES[:most]), are_accepted=True) == list(FILES[:most])
    if most < len(FILES):
        told = await refusal(images, named(*FILES[: most + 1]))
        assert told == f"The conversation has {most + 1} images; at most {most} are allowed (--limit-mm-per-prompt)."


async def test_the_size_of_all_images(monkeypatch: pytest.MonkeyPatch) -> None:
    images = ConversationImages(MediaOptions())
    size = sum(map(len, FILES))
    monkeypatch.setattr("gateway.media.conversations.MAX_IMAGES_BYTES", size)
    assert await images.read(named(*FILES), are_accepted=True) == list(FILES)
    monkeypatch.setattr("gateway.media.conversations.MAX_IMAGES_BYTES", size - 1)
    assert f"more than {size - 1} bytes together" in await refusal(images, named(*FILES))


@dataclass
class SlowFetcher:
    """Gets each image after so many rounds of the event loop as its URL says; `bad` ones cannot be had."""

    fetched: int = 0
    cancelled: int = 0

    async def fetch(self, url: str, place: str) -> bytes:
        rounds, _, kind = url.partition(" ")
        try:
            for _ in range(int(rounds)):
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if kind == "bad":
            raise InvalidRequest("cannot be had", parameter="messages")
        self.fetched += 1
        return bytes(10)


@pytest.mark.parametrize(
    ("kinds", "most", "words", "fetched"),
    [(["", "bad", *[""] * 10], 1000, "cannot be had", 1), ([""] * 12, 25, "more than 25 bytes", 3)],
)
async def test_once_an_image_is_refused_no_more_is_fetched(
    kinds: list[str], most: int, words: str, fetched: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.media.conversations.MAX_IMAGES_BYTES", most)
    images, fetcher = ConversationImages(MediaOptions()), SlowFetcher()
    monkeypatch.setattr(images, "_fetcher", fetcher)
    given = [ImageUrl(f"{10 * number} {kind}", "x") for number, kind in enumerate(kinds)]
    assert words in await refusal(images, given)
    await asyncio.sleep(0.01)
    assert (fetcher.fetched, fetcher.cancelled) == (fetched, len(given) - fetched - (words == "cannot be had"))


@pytest.mark.parametrize("settings", [None, {}, {"max_pixels": 784}])
async def test_settings_for_the_image_processor(settings: dict[str, Any] | None) -> None:
    ConversationImages(MediaOptions(trust_request_mm_kwargs=True)).check_settings(settings)
    untrusting = ConversationImages(MediaOptions())
    if not settings:
        untrusting.check_settings(settings)
        return
    with pytest.raises(InvalidRequest, match="start it with --trust-request-mm-kwargs") as caught:
        untrusting.check_settings(settings)
    assert caught.value.parameter == "mm_processor_kwargs"
