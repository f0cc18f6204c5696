"""Conversion of images to and from protobuf."""

from __future__ import annotations

from collections.abc import Iterable

from quire.errors import InvalidRequest
from quire.images import Image, ImageInput
from quire.v1 import common_pb2


def to_images(messages: Iterable[common_pb2.Image]) -> tuple[Image, ...]:
    """The unchecked images of a request."""
    return tuple(
        Image(
            message.offset,
            message.num_tokens,
            tuple(ImageInput(each.name, each.dtype, tuple(each.shape), each.data) for each in message.inputs),
            tuple(message.pixel_scale),
            tuple(message.pixel_shift),
            message.routing_key,
            message.encoder,
            message.goes_on,
        )
        for message in messages
    )


def from_images(images: Iterable[Image]) -> list[common_pb2.Image]:
    """The messages for images."""
    return [
        common_pb2.Image(
            offset=image.offset,
            num_tokens=image.num_tokens,
            inputs=[
                common_pb2.ImageInput(name=each.name, dtype=each.dtype, shape=each.shape, data=each.data)
                for each in image.inputs
            ],
            pixel_scale=image.pixel_scale,
            pixel_shift=image.pixel_shift,
            routing_key=image.routing_key,
            goes_on=image.goes_on,
        )
        for image in images
    ]


def goes_on(generation: common_pb2.Generation) -> bool:
    """Whether more of a request's recording follows."""
    return any(image.goes_on for image in generation.images)


def check_whole(generation: common_pb2.Generation) -> None:
    """Checks a request that is all that its caller sends.

    Raises:
        InvalidRequest: a recording goes on.
    """
    if goes_on(generation):
        raise InvalidRequest(
            "images: a recording goes on, but no more of it can follow in a call of Generate. Use a session, or send "
            "the recording when it is over.",
            parameter="images",
        )
