"""Conversion of images to and from protobuf."""

from __future__ import annotations

from collections.abc import Iterable

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
        )
        for image in images
    ]
