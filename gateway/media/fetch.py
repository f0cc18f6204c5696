"""Gets the bytes of an image from wherever its URL says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.media import data_url
from gateway.media.local_files import LocalFiles
from gateway.media.source import ImageSource
from quire.options.media import MediaOptions

if TYPE_CHECKING:
    from gateway.media.web import WebImages


class MediaFetcher:
    """Images in data: URLs, and those in files and on hosts that the operator allows. Used from one event loop."""

    def __init__(self, options: MediaOptions) -> None:
        self._files = LocalFiles(options.allowed_local_media_path)
        self._web: WebImages | None = None
        if options.allowed_media_domains:
            from gateway.media.web import WebImages  # imported late: httpx is slow to import, and rarely needed

            self._web = WebImages(options)

    async def fetch(self, url: str, place: str) -> bytes:
        """Returns the bytes of an image: at least one, and at most MAX_IMAGE_BYTES. What they hold is not checked.

        Args:
            place: where the URL is in the request, such as `messages[0].content[1]`.

        Raises:
            InvalidRequest: the URL is malformed, or of a kind, file or host that is not allowed; or the image cannot
                be read or fetched, is too large or takes too long.
        """
        source = ImageSource(url, place)
        image = await self._bytes(source)
        if not image:
            raise source.error("is empty. Send the file's content.")
        return image

    async def close(self) -> None:
        """Ends what fetching needs; nothing may be fetched afterwards."""
        if self._web:
            await self._web.close()

    async def _bytes(self, source: ImageSource) -> bytes:
        if source.scheme == "data":
            return await data_url.decode(source)
        if source.scheme == "file":
            return await self._files.read(source)
        if source.scheme not in ("http", "https"):
            what = f"has a URL of the scheme {source.scheme!r}" if source.scheme else "is not a URL"
            raise source.error(
                f"{what}. Send it as data:image/png;base64,… or, where the server allows it, as an http://, https:// "
                "or file:// URL (--allowed-media-domains, --allowed-local-media-path)."
            )
        if not self._web:
            raise source.error(
                f"is an {source.scheme}:// URL, which is only accepted by servers that are started with "
                "--allowed-media-domains. Send the image as a data: URL."
            )
        return await self._web.get(source)
