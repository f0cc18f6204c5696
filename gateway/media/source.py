"""The URL that a message names an image by."""

from __future__ import annotations

import re
from dataclasses import dataclass

from quire.errors import InvalidRequest
from quire.images import MAX_IMAGE_BYTES

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,19}):")
_SHOWN_CHARACTERS = 100


@dataclass(frozen=True)
class ImageSource:
    """An image's URL.

    Attributes:
        place: where the URL is in the request, such as `messages[0].content[1]`.
    """

    url: str
    place: str

    @property
    def scheme(self) -> str:
        """In lower case; empty if the text does not begin with one."""
        match = _SCHEME.match(self.url)
        return match[1].lower() if match else ""

    @property
    def shown(self) -> str:
        """The beginning of the URL, for messages. Not for data: URLs."""
        return repr(self.url[:_SHOWN_CHARACTERS])

    def error(self, what: str) -> InvalidRequest:
        """An error about the image; its message begins with where the image is and continues with `what`."""
        return InvalidRequest(f"{self.place} {what}", parameter="messages")

    def too_large(self) -> InvalidRequest:
        """The error for an image above the limit."""
        return self.error(f"has more than the {MAX_IMAGE_BYTES} bytes allowed for an image. Send a smaller one.")
