"""Which images, videos and audio a conversation may have."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from gateway.media.conversations import ConversationMedia, MediaFiles
from gateway.media.source import MediaSource
from gateway.requests.messages import MediaUrl
from quire.errors import InvalidRequest
from quire.media import MAX_EMBEDS_BYTES, MediaKind
from quire.options.media import MediaOptions

FILES = (b"first", b"second", b"third")
EVERY, IMAGE, VIDEO, AUDIO = tuple(MediaKind), MediaKind.IMAGE, MediaKind.VIDEO, MediaKind.AUDIO
# Type of a data: URL for each kind.
TYPES = {IMAGE: "image/gif", VIDEO: "video/mp4", AUDIO: "audio/wav"}
NAMES = {IMAGE: "images", VIDEO: "videos", AUDIO: "audio files"}


def named(*files: bytes, kind: MediaKind = IMAGE) -> list[MediaUrl]:
    """Files of a kind within the request."""
    return [
        MediaUrl(f"data:{TYPES[kind]};base64,{base64.b64encode(file).decode()}", f"messages[0].content[{index}]", kind)
        for index, file in enumerate(files)
    ]


async def refusal(media: ConversationMedia, given: Sequence[MediaUrl], accepted: Collection[MediaKind] = EVERY) -> str:
    with pytest.raises(InvalidRequest) as caught:
        await media.read(given, accepted)
    assert caught.value.parameter == "messages"
    return caught.value.message


async def test_files_come_in_the_order_of_their_names(tmp_path: Path) -> None:
    (tmp_path / "file.png").write_bytes(b"from a file")
    media = ConversationMedia(MediaOptions(allowed_local_media_path=str(tmp_path)))
    first, *others = named(*FILES)
    local = MediaUrl(f"file://{tmp_path}/file.png", "messages[1].content[0]", IMAGE)
    found = await media.read([first, local, *others], [IMAGE])
    assert found == MediaFiles([FILES[0], b"from a file", *FILES[1:]], [], [])


async def test_kinds_are_told_apart() -> None:
    media = ConversationMedia(MediaOptions())
    frames = MediaUrl("data:video/jpeg;base64,AAAA,AA==", "messages[1].content[0]", VIDEO)
    images, videos, audios = named(*FILES), named(b"one", b"two", kind=VIDEO), named(b"a", b"o", kind=AUDIO)
    found = await media.read([videos[0], audios[0], images[0], frames, *images[1:], videos[1], audios[1]], EVERY)
    assert found == MediaFiles(list(FILES), [(b"one",), (bytes(3), bytes(1)), (b"two",)], [b"a", b"o"])


def embedded(**tensors: str) -> MediaUrl:
    return MediaUrl("", "messages[0].content[9]", IMAGE, tensors)


async def test_embeddings_of_images_come_beside_the_files() -> None:
    media = ConversationMedia(MediaOptions(enable_mm_embeds=True, limit_mm_per_prompt="image=3"))
    one, two = embedded(image_embeds="AAAA"), embedded(image_embeds="AAAA", image_grid_thw="AA==")
    found = await media.read([one, *named(FILES[0]), two], EVERY)
    assert found.images == [b"", FILES[0], b""]
    assert found.image_embeds == {0: {"image_embeds": bytes(3)}, 2: {"image_embeds": bytes(3), "image_grid_thw": b"\0"}}
    assert "has 4 images; at most 3" in await refusal(media, [one, one, two, *named(FILES[0])])
    assert "is an image, but this model reads text only" in await refusal(media, [one], [])
    wrong = embedded(image_embeds="AAAA", image_grid_thw="!")
    assert "messages[0].content[9] is not valid base64" in (told := await refusal(media, [wrong]))
    assert ", in tensor 1" in told
    assert "is empty" in await refusal(media, [embedded(image_embeds="")])
    large = embedded(image_embeds="AAAA" * (MAX_EMBEDS_BYTES // 3 + 1))
    assert f"more than the {MAX_EMBEDS_BYTES} bytes allowed for the embeddings" in await refusal(media, [large])


async def test_embeddings_are_refused_by_default() -> None:
    told = await refusal(ConversationMedia(MediaOptions()), [embedded(image_embeds="AAAA")])
    assert told.startswith("messages[0].content[9] brings the embeddings of an image")
    assert "--enable-mm-embeds. Send the image." in told


async def test_files_that_came_with_the_request_are_not_fetched() -> None:
    media, uploads = ConversationMedia(MediaOptions()), {"cid:file": b"spoken"}
    url = MediaUrl("cid:file", "messages[0].content[0]", AUDIO)
    assert await media.read([url, *named(b"two", kind=AUDIO)], EVERY, uploads) == MediaFiles(
        [], [], [b"spoken", b"two"]
    )
    assert "has a URL of the scheme 'cid'" in await refusal(media, [url])


@pytest.mark.parametrize(
    ("kind", "accepted", "told"),
    [
        (IMAGE, [], "is an image, but this model reads text only."),
        (VIDEO, [], "is a video, but this model reads text only."),
        (VIDEO, [IMAGE], "is a video, but this model reads text and images only."),
        (IMAGE, [VIDEO], "is an image, but this model reads text and videos only."),
        (AUDIO, [], "is an audio, but this model reads text only."),
        (AUDIO, [IMAGE], "is an audio, but this model reads text and images only."),
        (AUDIO, [IMAGE, VIDEO], "is an audio, but this model reads text, images and videos only."),
        (IMAGE, [AUDIO], "is an image, but this model reads text and audio files only."),
    ],
)
async def test_what_a_model_does_not_read(kind: MediaKind, accepted: list[MediaKind], told: str) -> None:
    media = ConversationMedia(MediaOptions())
    assert await media.read([], accepted) == MediaFiles()
    assert await refusal(media, named(*FILES, kind=kind), accepted) == f"messages[0].content[0] {told}"


@pytest.mark.parametrize("kind", MediaKind)
@pytest.mark.parametrize(
    ("limit", "most"),
    [("{}=2", 2), ('{{"{}": 1}}', 1), ("{}s=0", 0), ("", 3),
     ('{{"{}": {{"count": 2}}}}', 2)],
)  # fmt: skip
async def test_the_number_of_each_kind(kind: MediaKind, limit: str, most: int) -> None:
    first, second = set(MediaKind) - {kind}
    media = ConversationMedia(MediaOptions(limit_mm_per_prompt=limit.format(kind)))
    given = [*named(*FILES, kind=first), *named(*FILES[:most], kind=kind), *named(*FILES, kind=second)]
    found = await media.read(given, EVERY)
    counts = {IMAGE: len(found.images), VIDEO: len(found.videos), AUDIO: len(found.audios)}
    assert counts == {first: 3, second: 3, kind: most}
    if most < len(FILES):
        told = await refusal(media, named(*FILES[: most + 1], kind=kind))
        assert told == (
            f"The conversation has {most + 1} {NAMES[kind]}; at most {most} are allowed (--limit-mm-per-prompt)."
        )


async def test_the_size_of_all_files(monkeypatch: pytest.MonkeyPatch) -> None:
    media = ConversationMedia(MediaOptions())
    size = sum(map(len, FILES))
    given = [*named(*FILES[:2]), *named(*FILES[2:], kind=VIDEO)]
    monkeypatch.setattr("gateway.media.conversations.MAX_FILES_BYTES", size)
    assert await media.read(given, EVERY) == MediaFiles(list(FILES[:2]), [FILES[2:]], [])
    monkeypatch.setattr("gateway.media.conversations.MAX_FILES_BYTES", size - 1)
    assert f"more than {size - 1} bytes together" in await refusal(media, given)


@dataclass
class SlowFetcher:
    """Gets each image after so many rounds of the event loop as its URL says; `bad` ones cannot be had."""

    fetched: int = 0
    cancelled: int = 0

    async def fetch(self, source: MediaSource) -> tuple[bytes, ...]:
        rounds, _, kind = source.url.partition(" ")
        try:
            for _ in range(int(rounds)):
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if kind == "bad":
            raise InvalidRequest("cannot be had", parameter="messages")
        self.fetched += 1
        return (bytes(10),)


@pytest.mark.parametrize(
    ("kinds", "most", "words", "fetched"),
    [(["", "bad", *[""] * 10], 1000, "cannot be had", 1), ([""] * 12, 25, "more than 25 bytes", 3)],
)
async def test_once_an_image_is_refused_no_more_is_fetched(
    kinds: list[str], most: int, words: str, fetched: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.media.conversations.MAX_FILES_BYTES", most)
    media, fetcher = ConversationMedia(MediaOptions()), SlowFetcher()
    monkeypatch.setattr(media, "_fetcher", fetcher)
    given = [MediaUrl(f"{10 * number} {kind}", "x", IMAGE) for number, kind in enumerate(kinds)]
    assert words in await refusal(media, given)
    await asyncio.sleep(0.01)
    assert (fetcher.fetched, fetcher.cancelled) == (fetched, len(given) - fetched - (words == "cannot be had"))
