"""The images of conversations, as the tokenizer service takes them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from gateway.media.fetch import MediaFetcher
from quire.errors import InvalidRequest
from quire.images import MAX_IMAGES_BYTES
from quire.options.media import MediaOptions
from quire.options.multimodal import LIMIT_FLAG, most_images


class NamedImage(Protocol):
    """An image that a message names."""

    @property
    def url(self) -> str: ...

    @property
    def place(self) -> str: ...


class ConversationImages:
    """Reads the images that conversations name. Used from one event loop."""

    def __init__(self, options: MediaOptions) -> None:
        """
        Raises:
            StartupError: the options are malformed.
        """
        options.check()
        self._fetcher = MediaFetcher(options)
        self._most = most_images(options.limit_mm_per_prompt)
        self._trusts_settings = options.trust_request_mm_kwargs

    async def close(self) -> None:
        """Ends what fetching needs."""
        await self._fetcher.close()

    async def read(self, images: Sequence[NamedImage], *, are_accepted: bool) -> list[bytes]:
        """Returns the images' files.

        Args:
            are_accepted: whether the model reads images.

        Raises:
            InvalidRequest: the model reads text only, there are too many images, or one cannot be had.
        """
        if not images:
            return []
        if not are_accepted:
            raise InvalidRequest(
                f"{images[0].place} is an image, but this model reads text only.", parameter="messages"
            )
        if len(images) > self._most:
            raise InvalidRequest(
                f"The conversation has {len(images)} images; at most {self._most} are allowed ({LIMIT_FLAG}).",
                parameter="messages",
            )
        size = 0

        async def fetch(image: NamedImage) -> bytes:
            nonlocal size
            file = await self._fetcher.fetch(image.url, image.place)
            size += len(file)
            if size > MAX_IMAGES_BYTES:
                raise InvalidRequest(
                    f"The images have more than {MAX_IMAGES_BYTES} bytes together. Send fewer or smaller ones.",
                    parameter="messages",
                )
            return file

        fetching = [asyncio.ensure_future(fetch(image)) for image in images]
        try:
            return await asyncio.gather(*fetching)
        finally:  # once one fails, none of the others is wanted
            for each in fetching:
                each.cancel()

    def check_settings(self, settings: Mapping[str, Any] | None) -> None:
        """Checks whether a request may bring settings for the image processor.

        Raises:
            InvalidRequest: it brings some, which the server does not allow.
        """
        if settings and not self._trusts_settings:
            raise InvalidRequest(
                "This server does not accept settings for the image processor from requests; start it with "
                "--trust-request-mm-kwargs.",
                parameter="mm_processor_kwargs",
            )
