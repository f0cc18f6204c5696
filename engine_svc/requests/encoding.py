"""Requests to encode an image, a video or an audio for a worker that generates."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace

from quire.images import Image


@dataclass(frozen=True)
class EncodingInput:
    """The only input of a request."""

    image: Image

    @property
    def token_ids(self) -> range:
        """As many as the image has tokens."""
        return range(self.image.num_tokens)


@dataclass(frozen=True)
class EncodingRequest:
    """A request to encode an image. Only trustworthy once `check_images` has accepted this."""

    image: Image
    request_id: str
    timeout_seconds: float | None = None
    priority: int = 0

    @property
    def inputs(self) -> tuple[EncodingInput, ...]:
        """See OneShotRequest."""
        return (EncodingInput(self.image),)

    @property
    def num_tokens(self) -> int:
        """Tokens of the image."""
        return self.image.num_tokens

    @property
    def content_bytes(self) -> int:
        """See GenerationRequest."""
        return self.image.num_bytes


def encoding_request(image: Image, request_id: str, remaining: float | None) -> EncodingRequest:
    """A request for an image, wherever it stands in its prompt.

    Args:
        request_id: generated if it is empty.
        remaining: seconds until the call's deadline; None if it has none.
    """
    return EncodingRequest(replace(image, offset=0), request_id or uuid.uuid4().hex, remaining)


class EncodingFacts:
    """See OneShotFacts."""

    def held_bytes(self, request: EncodingRequest) -> int:
        """Bytes of the image."""
        return request.image.num_bytes

    def sequence(self, request: EncodingRequest, index: int) -> EncodingInput:
        """The image."""
        return request.inputs[index]
