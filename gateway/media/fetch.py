"""Gets the bytes of an image, a video or an audio from wherever its URL says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.media import data_url
from gateway.media.kinds import DATA_URLS
from gateway.media.local_files import LocalFiles
from gateway.media.source import MediaSource
from quire.options.media import MediaOptions

if TYPE_CHECKING:
    from gateway.media.web import WebMedia


class MediaFetcher:
    """Images, videos and audio in data: URLs, and those in files and on hosts that the operator allows.

    Used from one event loop.
    """

    def __init__(self, options: MediaOptions) -> None:
        self._folder = LocalFiles(options.allowed_local_media_path)
        self._web: WebMedia | None = None
        if options.allowed_media_domains:
            from gateway.media.web import WebMedia  # imported late: httpx is slow to import, and rarely needed

            self._web = WebMedia(options)

    async def fetch(self, source: MediaSource) -> tuple[bytes, ...]:
        """Returns the file of an image, a video or an audio, or the files of a video's frames.

        None is empty, and together they have at most `source.most_bytes`. What they hold is not checked.

        Raises:
            InvalidRequest: the URL is malformed, or of a kind, file or host that is not allowed; or the file cannot be
                read or fetched, is too large or takes too long.
        """
        files = await self._files_of(source)
        if not all(files):
            part = "tensor" if source.tensors else "frame"
            raise source.error(
                f"{'is' if len(files) == 1 else f'has a {part} that is'} empty. Send the file's content."
            )
        return files

    async def close(self) -> None:
        """Ends what fetching needs; nothing may be fetched afterwards."""
        if self._web:
            await self._web.close()

    async def _files_of(self, source: MediaSource) -> tuple[bytes, ...]:
        if source.tensors:
            return await data_url.decode_tensors(source)
        if source.scheme == "data":
            return await data_url.decode(source)
        if source.scheme == "file":
            return (await self._folder.read(source),)
        if source.scheme not in ("http", "https"):
            what = f"has a URL of the scheme {source.scheme!r}" if source.scheme else "is not a URL"
            raise source.error(
                f"{what}. Send it as {DATA_URLS[source.kind]}… or, where the server allows it, as an http://, https:// "
                "or file:// URL (--allowed-media-domains, --allowed-local-media-path)."
            )
        if not self._web:
            raise source.error(
                f"is an {source.scheme}:// URL, which is only accepted by servers that are started with "
                f"--allowed-media-domains. Send the {source.kind} as a data: URL."
            )
        return (await self._web.get(source),)
