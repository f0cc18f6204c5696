"""Images and videos in the folder that is open to requests."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from gateway.media.fetch import MediaFetcher
from gateway.media.source import MediaSource
from quire.errors import InvalidRequest
from quire.media import MAX_FILE_BYTES, MediaKind
from quire.options.media import MediaOptions

PLACE = "messages[2].content[0]"
SHOWN = 100  # characters of a URL in messages


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with cat.png, beside which there is secret.png."""
    folder = tmp_path / "open"
    folder.mkdir()
    (folder / "cat.png").write_bytes(b"cat")
    (tmp_path / "secret.png").write_bytes(b"secret")
    return folder


async def fetched(folder: Path | str, url: str, kind: MediaKind = MediaKind.IMAGE) -> bytes:
    fetcher = MediaFetcher(MediaOptions(allowed_local_media_path=str(folder)))
    (file,) = await fetcher.fetch(MediaSource(url, PLACE, kind))
    return file


async def refusal(folder: Path | str, url: str, kind: MediaKind = MediaKind.IMAGE) -> str:
    with pytest.raises(InvalidRequest) as caught:
        await fetched(folder, url, kind)
    assert caught.value.parameter == "messages"
    assert PLACE in caught.value.message
    return caught.value.message


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_a_file_in_the_folder(folder: Path) -> None:
    (folder / "deep").mkdir()
    (folder / "deep" / "größer 50%.png").write_bytes(b"deep")
    (folder / "link.png").symlink_to(folder / "cat.png")
    assert await fetched(folder, f"file://{folder}/cat.png") == b"cat"
    assert await fetched(folder, f"FILE://localhost{folder}/cat.png") == b"cat"
    assert await fetched(folder, f"file://{folder}/deep/gr%C3%B6%C3%9Fer%2050%25.png") == b"deep"
    assert await fetched(folder, f"file://{folder}/link.png") == b"cat"


async def test_the_folder_may_be_a_link(folder: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(folder)
    assert await fetched(link, f"file://{link}/cat.png") == b"cat"
    assert await fetched(link, f"file://{folder}/cat.png") == b"cat"


async def test_no_file_is_read_by_default(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    for kind in MediaKind:
        message = await refusal("", f"file://{folder}/cat.png", kind)
        assert "started with --allowed-local-media-path" in message and f"Send the {kind} as a data: URL" in message


async def test_what_is_outside_looks_like_what_is_missing(folder: Path, tmp_path: Path) -> None:
    (folder / "way-out.png").symlink_to(tmp_path / "secret.png")
    (folder / "up").symlink_to(tmp_path)
    (tmp_path / "open-too").mkdir()
    (tmp_path / "open-too" / "cat.png").write_bytes(b"secret")
    missing = f"file://{folder}/missing.png"
    expected = (await refusal(folder, missing)).replace(missing[:SHOWN], "")
    for path in (
        f"{tmp_path}/secret.png", f"{folder}/../secret.png", f"{folder}/%2e%2e/secret.png",
        f"{folder}/%2E%2E%2Fsecret.png", f"{folder}/way-out.png", f"{folder}/up/secret.png",
        f"{tmp_path}/open-too/cat.png",
    ):  # fmt: skip
        assert (await refusal(folder, f"file://{path}")).replace(f"file://{path}"[:SHOWN], "") == expected, path


async def test_what_is_no_readable_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(folder / "fifo.png")
    (folder / "circle.png").symlink_to(folder / "circle.png")
    monkeypatch.chdir(folder)  # the path of a socket must be short
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket.png")
    descriptors = open_descriptors()
    for name in ("fifo.png", "circle.png", "socket.png", "", "cat.png/x", "cat%00.png", "%ff", "x" * 300, "\ud800"):
        assert "is not a readable file" in await refusal(folder, f"file://{folder}/{name}"), name
    assert open_descriptors() == descriptors


async def test_devices_are_not_read() -> None:
    assert "is not a readable file" in await refusal("/dev", "file:///dev/zero")


@pytest.mark.parametrize("head", ["file://other.example", "file:", "file:/", "file://", "file://localhost"])
async def test_urls_of_other_forms(folder: Path, head: str) -> None:
    path = "" if head in ("file://", "file://localhost") else f"{folder}/cat.png"
    assert "an absolute path" in await refusal(folder, head + path)


@pytest.mark.parametrize("kind", MediaKind)
async def test_a_file_that_is_too_large(folder: Path, kind: MediaKind) -> None:
    most = MAX_FILE_BYTES[kind]
    with (folder / "large").open("wb") as file:
        file.truncate(most)
    assert len(await fetched(folder, f"file://{folder}/large", kind)) == most
    with (folder / "large").open("ab") as file:
        file.write(b"x")
    assert f"{most} bytes allowed for a" in await refusal(folder, f"file://{folder}/large", kind)


async def test_a_long_url_is_shown_in_part(folder: Path) -> None:
    message = await refusal(folder, "file:///" + "x" * 5000)
    assert "x" * 92 in message
    assert "x" * 93 not in message
