"""The images, videos and audio of conversations, as the tokenizer service takes them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

from gateway.media.fetch import MediaFetcher
from gateway.media.kinds import NOUNS, PLURALS
from gateway.media.source import MediaSource
from quire.errors import InvalidRequest
from quire.media import MAX_FILES_BYTES, MediaKind
from quire.options.media import MediaOptions
from quire.options.multimodal import LIMIT_FLAG, most

# Files that came with the request, by the URLs that messages name them by.
Uploads = Mapping[str, bytes]
NO_UPLOADS: Uploads = MappingProxyType({})


class NamedMedia(Protocol):
    """An image, a video or an audio that a message names."""

    @property
    def url(self) -> str: ...

    @property
    def place(self) -> str: ...

    @property
    def kind(self) -> MediaKind: ...

    @property
    def tensors(self) -> Mapping[str, str]: ...


@dataclass(frozen=True)
class MediaFiles:
    """The files of a conversation's images and audio, and of its videos: of each, one file or those of its frames.

    Attributes:
        image_embeds: index of an image that comes as embeddings → its tensors by name. Its file is empty.
    """

    images: Sequence[bytes] = ()
    videos: Sequence[tuple[bytes, ...]] = ()
    audios: Sequence[bytes] = ()
    image_embeds: Mapping[int, Mapping[str, bytes]] = field(default_factory=dict)


class ConversationMedia:
    """Reads the images, videos and audio that conversations name. Used from one event loop."""

    def __init__(self, options: MediaOptions) -> None:
        """
        Raises:
            StartupError: the options are malformed.
        """
        options.check()
        self._fetcher = MediaFetcher(options)
        self._takes_embeds = options.enable_mm_embeds
        self._most = {kind: most(options.limit_mm_per_prompt, kind) for kind in MediaKind}

    async def close(self) -> None:
        """Ends what fetching needs."""
        await self._fetcher.close()

    async def read(
        self, named: Sequence[NamedMedia], accepted: Collection[MediaKind], uploads: Uploads = NO_UPLOADS
    ) -> MediaFiles:
        """Returns the files.

        Args:
            accepted: what the model reads, besides text.
            uploads: files that need not be fetched; their sizes have been checked.

        Raises:
            InvalidRequest: the model does not read one of them, there are too many, or one cannot be had.
        """
        if not named:
            return MediaFiles()
        sources = [MediaSource(each.url, each.place, each.kind, each.tensors) for each in named]
        self._check(sources, accepted)
        found = list(zip(sources, await self._fetched(sources, uploads), strict=True))
        images = [(source, files) for source, files in found if source.kind is MediaKind.IMAGE]
        return MediaFiles(
            [b"" if source.tensors else file for source, (file, *_) in images],
            [files for source, files in found if source.kind is MediaKind.VIDEO],
            [file for source, (file, *_) in found if source.kind is MediaKind.AUDIO],
            {
                index: dict(zip(source.tensors, files, strict=True))
                for index, (source, files) in enumerate(images)
                if source.tensors
            },
        )

    def _check(self, sources: Sequence[MediaSource], accepted: Collection[MediaKind]) -> None:
        for source in sources:
            if source.kind not in accepted:
                raise source.error(f"is {NOUNS[source.kind]}, but this model reads {_listed(accepted)} only.")
            if source.tensors and not self._takes_embeds:
                raise source.error(
                    "brings the embeddings of an image, which are only accepted by servers that are started with "
                    "--enable-mm-embeds. Send the image."
                )
        for kind, count in Counter(source.kind for source in sources).items():
            if count > self._most[kind]:
                raise InvalidRequest(
                    f"The conversation has {count} {PLURALS[kind]}; at most {self._most[kind]} are allowed "
                    f"({LIMIT_FLAG}).",
                    parameter="messages",
                )

    async def _fetched(self, sources: Sequence[MediaSource], uploads: Uploads) -> Sequence[tuple[bytes, ...]]:
        size = 0

        async def fetch(source: MediaSource) -> tuple[bytes, ...]:
            nonlocal size
            upload = uploads.get(source.url)
            files = await self._fetcher.fetch(source) if upload is None else (upload,)
            size += sum(map(len, files))
            if size > MAX_FILES_BYTES:
                raise InvalidRequest(
                    f"The images, videos and audio have more than {MAX_FILES_BYTES} bytes together. Send fewer or "
                    "smaller ones.",
                    parameter="messages",
                )
            return files

        fetching = [asyncio.ensure_future(fetch(source)) for source in sources]
        try:
            return await asyncio.gather(*fetching)
        finally:  # once one fails, none of the others is wanted
            for each in fetching:
                each.cancel()


def _listed(accepted: Collection[MediaKind]) -> str:
    """What a model reads, such as `text, images and audio files`."""
    *others, last = ["text", *(PLURALS[kind] for kind in accepted)]
    return f"{', '.join(others)} and {last}" if others else last
