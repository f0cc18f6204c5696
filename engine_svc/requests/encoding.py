"""Requests to encode an image, a video or an audio for a worker that generates."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace

from engine_svc.pooling_plan import EncodingInput
from quire.images import Image


@dataclass(frozen=True)
class EncodingRequest:
    """A request to encode an image. Only trustworthy once `check_images` has accepted this."""

    image: Image
    request_id: str
    timeout_seconds: float | None = None
    priority: int = 0
    model: str = ""  # the one that is served

    @property
    def inputs(self) -> tuple[EncodingInput, ...]:
        """See OneShotRequest."""
        return (EncodingInput(self.image),)

    @property
    def num_tokens(self) -> int:
        """Tokens of the image."""
        return self.image.num_tokens

    @property
    def adapter(self) -> None:
        """See OneShotRequest: encoders have no adapters."""

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

    def sequence(self, request: EncodingRequest, index: int, adapter_slot: int) -> EncodingInput:
        """The image."""
        return request.inputs[index]
