"""The URL that a message names an image, a video or an audio by."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.media.kinds import NOUNS
from quire.errors import InvalidRequest
from quire.media import MAX_EMBEDS_BYTES, MAX_FILE_BYTES, MediaKind

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,19}):")
_SHOWN_CHARACTERS = 100


@dataclass(frozen=True)
class MediaSource:
    """The URL of an image, a video or an audio.

    Attributes:
        place: where the URL is in the request, such as `messages[0].content[1]`.
        tensors: of an image that comes as embeddings, see MediaUrl.
    """

    url: str
    place: str
    kind: MediaKind
    tensors: Mapping[str, str] = field(default_factory=dict)

    @property
    def scheme(self) -> str:
        """In lower case; empty if the text does not begin with one."""
        match = _SCHEME.match(self.url)
        return match[1].lower() if match else ""

    @property
    def shown(self) -> str:
        """The beginning of the URL, for messages. Not for data: URLs."""
        return repr(self.url[:_SHOWN_CHARACTERS])

    @property
    def most_bytes(self) -> int:
        """Limit for its file, or for all frames of a video, or all tensors of an image, together."""
        return MAX_EMBEDS_BYTES if self.tensors else MAX_FILE_BYTES[self.kind]

    def error(self, what: str) -> InvalidRequest:
        """An error about what the URL names; its message begins with where that is and continues with `what`."""
        return InvalidRequest(f"{self.place} {what}", parameter="messages")

    def too_large(self) -> InvalidRequest:
        """The error for what is above the limit."""
        return self.error(
            f"has more than the {self.most_bytes} bytes allowed for "
            f"{'the embeddings of an image' if self.tensors else NOUNS[self.kind]}. Send a smaller one."
        )
