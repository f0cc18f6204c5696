"""Images of prompts: prepared in child processes that can be killed, and given their places among the tokens."""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quire.errors import InvalidRequest, Unavailable
from quire.images import MAX_IMAGES, Image, ImageInput, check_size
from quire.options.multimodal import ImageProcessorOptions
from tokenizer_svc.byte_cache import ByteCache
from tokenizer_svc.child import Message
from tokenizer_svc.child_pool import ChildEnded, ChildPool, ChildTooSlow

logger = logging.getLogger(__name__)

_FILES = ("processor_config.json", "preprocessor_config.json")
_PACKAGES = {"PIL": "pillow", "transformers": "transformers", "numpy": "numpy"}  # module → its package
_SECONDS = 10.0
_MAX_WAITING = 64
_AT_ONCE = 4  # images of a request that are prepared, or wait for it, at a time: they share the processes with others
_ENTRY_BYTES = 1024  # approximate memory of a cache entry, apart from its bytes
_PARAMETER = "messages"


@dataclass(frozen=True)
class PreparedImage:
    """An image for the model, without a place; see ProcessedImage."""

    text: str
    num_tokens: int
    image: Image

    @property
    def num_bytes(self) -> int:
        """Approximate memory that it takes."""
        return self.image.num_bytes + len(self.text) + _ENTRY_BYTES


class ImagePreparer:
    """Prepares images with the model's image processor. Used from one event loop."""

    def __init__(self, folder: Path | None, options: ImageProcessorOptions) -> None:
        """
        Args:
            folder: of the tokenizer; None for one that is in no folder.
        """
        self._refusal = _refusal(folder)
        self._settings = options.mm_processor_kwargs
        self._known: ByteCache[bytes, PreparedImage] = ByteCache(int(options.mm_processor_cache_gb * 2**30))
        self._pool = ChildPool(
            "tokenizer_svc.image_process", Message({"folder": str(folder)}), Message(), work="images to prepare",
            timeout_seconds=_SECONDS, max_waiting=_MAX_WAITING,
        )  # fmt: skip
        self.placeholder = ""  # what stands for an image in rendered conversations; empty if there are no images
        self._image_token_id = -1

    async def start(self) -> None:
        """Starts a process, if the model comes with an image processor. Without one, all images are refused."""
        if self._refusal:
            return
        try:
            await self._pool.start()
            self.use((await self._pool.ask(Message())).fields)
        except (Unavailable, ChildEnded, ChildTooSlow):
            self._refusal = "its image processor could not be started; the tokenizer service's log may say why"
            logger.warning("images are refused: %s", self._refusal)

    def use(self, facts: Mapping[str, Any]) -> None:
        """Takes a process's report on how prompts mark images."""
        self.placeholder, self._image_token_id = facts["placeholder"], facts["image_token_id"]

    async def close(self) -> None:
        """Ends the processes."""
        await self._pool.close()

    async def prepare(self, files: Sequence[bytes], settings: Mapping[str, Any]) -> list[PreparedImage]:
        """Prepares image files, each from the cache if it has been prepared before.

        Args:
            settings: of a request, for the image processor.

        Raises:
            InvalidRequest: the model has no image processor, a file is not an image or takes too much time or memory,
                the settings do not suit the processor, or there are too many images.
            Overloaded: too many images wait already, or the machine is too busy.
        """
        if self._refusal:
            raise InvalidRequest(f"This model reads text only: {self._refusal}.", parameter=_PARAMETER)
        if len(files) > MAX_IMAGES:
            raise InvalidRequest(
                f"There are {len(files)} images; at most {MAX_IMAGES} are allowed.", parameter=_PARAMETER
            )
        chosen = {**self._settings, **settings}
        prepared: list[PreparedImage] = []
        for start in range(0, len(files), _AT_ONCE):
            some = files[start : start + _AT_ONCE]
            prepared += await asyncio.gather(*(self._prepare(file, chosen) for file in some))
            check_size([each.image for each in prepared], _PARAMETER)
        return prepared

    async def _prepare(self, file: bytes, settings: Mapping[str, Any]) -> PreparedImage:
        head = json.dumps(settings, sort_keys=True).encode()
        key = hashlib.sha256(head + hashlib.sha256(file).digest()).digest()
        if (known := self._known.get(key)) is not None:
            return known
        if not file:
            raise InvalidRequest("An image is empty. Send the file's content.", parameter=_PARAMETER)
        parameter = _PARAMETER
        try:
            answer = await self._pool.ask(Message({"settings": settings}, file))
        except ChildTooSlow:
            problem = f"An image takes longer than {_SECONDS:g} s to prepare. Send a smaller one."
        except ChildEnded:
            problem = "An image takes too much memory. Send a smaller one."
        else:
            if (problem := answer.fields.get("error", "")) == "":
                found = prepared_image(answer)
                if not found.num_tokens:
                    raise InvalidRequest("An image is too small to have any tokens.", parameter=_PARAMETER)
                self._known.put(key, found, found.num_bytes)
                return found
            parameter = answer.fields["parameter"] or parameter
        raise InvalidRequest(problem, parameter=parameter)

    def insert(self, text: str, images: Sequence[PreparedImage]) -> str:
        """A rendered conversation with each placeholder replaced by its image's text.

        Raises:
            InvalidRequest: there is not one placeholder for each image.
        """
        first, *rest = text.split(self.placeholder)
        if len(rest) != len(images):
            raise InvalidRequest(
                f"The chat template has written {len(rest)} image placeholders ({self.placeholder}) for {len(images)} "
                "images. Remove such placeholders from texts, and place images where the template expects them.",
                parameter=_PARAMETER,
            )
        return first + "".join(image.text + after for image, after in zip(images, rest, strict=True))

    def place(self, token_ids: Sequence[int], images: Sequence[PreparedImage]) -> list[Image]:
        """The images at their places among a prompt's tokens.

        Raises:
            InvalidRequest: there are more or fewer image tokens than embeddings.
        """
        positions = [position for position, token in enumerate(token_ids) if token == self._image_token_id]
        wanted = sum(image.num_tokens for image in images)
        if len(positions) != wanted:
            raise InvalidRequest(
                f"The prompt has {len(positions)} image tokens (id {self._image_token_id}) instead of {wanted}. Remove "
                "such tokens from texts.",
                parameter=_PARAMETER,
            )
        placed, start = [], 0
        for each in images:
            own = positions[start : start + each.num_tokens]
            placed.append(each.image.at(own[0], own[-1] - own[0] + 1))
            start += each.num_tokens
        return placed


def prepared_image(answer: Message) -> PreparedImage:
    """The image in a process's answer."""
    fields, start, inputs = answer.fields, 0, []
    for name, dtype, shape, size in fields["inputs"]:
        inputs.append(ImageInput(name, dtype, tuple(shape), answer.payload[start : start + size]))
        start += size
    image = Image(0, 0, tuple(inputs), tuple(fields["pixel_scale"]), tuple(fields["pixel_shift"]))
    return PreparedImage(fields["text"], fields["num_tokens"], image)


def _refusal(folder: Path | None) -> str:
    """Why images cannot be prepared; empty if they can."""
    if folder is None or not any((folder / name).is_file() for name in _FILES):
        return "it comes without an image processor"
    missing = [package for module, package in _PACKAGES.items() if importlib.util.find_spec(module) is None]
    if missing:
        logger.warning("images are refused: %s missing; pip install 'quire[images]'", " and ".join(missing))
        return "the tokenizer service was installed without quire[images]"
    return ""
