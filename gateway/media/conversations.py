"""The images and videos of conversations, as the tokenizer service takes them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from gateway.media.fetch import MediaFetcher
from gateway.media.kinds import NOUNS
from gateway.media.source import MediaSource
from quire.errors import InvalidRequest
from quire.media import MAX_FILES_BYTES, MediaKind
from quire.options.media import MediaOptions
from quire.options.multimodal import LIMIT_FLAG, most


class NamedMedia(Protocol):
    """An image or a video that a message names."""

    @property
    def url(self) -> str: ...

    @property
    def place(self) -> str: ...

    @property
    def kind(self) -> MediaKind: ...


@dataclass(frozen=True)
class MediaFiles:
    """The files of a conversation's images, and of its videos: of each, one file or those of its frames."""

    images: Sequence[bytes] = ()
    videos: Sequence[tuple[bytes, ...]] = ()


class ConversationMedia:
    """Reads the images and videos that conversations name. Used from one event loop."""

    def __init__(self, options: MediaOptions) -> None:
        """
        Raises:
            StartupError: the options are malformed.
        """
        options.check()
        self._fetcher = MediaFetcher(options)
        self._most = {kind: most(options.limit_mm_per_prompt, kind) for kind in MediaKind}

    async def close(self) -> None:
        """Ends what fetching needs."""
        await self._fetcher.close()

    async def read(self, named: Sequence[NamedMedia], accepted: Collection[MediaKind]) -> MediaFiles:
        """Returns the files.

        Args:
            accepted: what the model reads, besides text.

        Raises:
            InvalidRequest: the model does not read one of them, there are too many, or one cannot be had.
        """
        if not named:
            return MediaFiles()
        sources = [MediaSource(each.url, each.place, each.kind) for each in named]
        self._check(sources, accepted)
        found = list(zip(sources, await self._fetched(sources), strict=True))
        return MediaFiles(
            [file for source, (file, *_) in found if source.kind is MediaKind.IMAGE],
            [files for source, files in found if source.kind is MediaKind.VIDEO],
        )

    def _check(self, sources: Sequence[MediaSource], accepted: Collection[MediaKind]) -> None:
        for source in sources:
            if source.kind not in accepted:
                read = " and ".join(["text", *(f"{kind}s" for kind in accepted)])
                raise source.error(f"is {NOUNS[source.kind]}, but this model reads {read} only.")
        for kind, count in Counter(source.kind for source in sources).items():
            if count > self._most[kind]:
                raise InvalidRequest(
                    f"The conversation has {count} {kind}s; at most {self._most[kind]} are allowed ({LIMIT_FLAG}).",
                    parameter="messages",
                )

    async def _fetched(self, sources: Sequence[MediaSource]) -> Sequence[tuple[bytes, ...]]:
        size = 0

        async def fetch(source: MediaSource) -> tuple[bytes, ...]:
            nonlocal size
            files = await self._fetcher.fetch(source)
            size += sum(map(len, files))
            if size > MAX_FILES_BYTES:
                raise InvalidRequest(
                    f"The images and videos have more than {MAX_FILES_BYTES} bytes together. Send fewer or smaller "
                    "ones.",
                    parameter="messages",
                )
            return files

        fetching = [asyncio.ensure_future(fetch(source)) for source in sources]
        try:
            return await asyncio.gather(*fetching)
        finally:  # once one fails, none of the others is wanted
            for each in fetching:
                each.cancel()
