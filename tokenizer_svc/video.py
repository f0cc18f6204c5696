"""A video whose frames are decoded when they are asked for."""

from __future__ import annotations

import abc
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from PIL import Image

from tokenizer_svc.media_rejection import MediaRejection

MAX_PIXELS = 4096 * 2304  # of a frame
UNKNOWN_FPS = 24.0
_MAX_FRAMES = 200_000


@dataclass(frozen=True)
class VideoFacts:
    """What is known of a whole video.

    Attributes:
        num_frames: at least one.
        fps: frames per second on average; 24 if it is unknown, 1 for a list of images.
        width, height: of the upright frames, in pixels.
        is_list: whether it is a list of images, which the caller has chosen.
    """

    num_frames: int
    fps: float
    width: int
    height: int
    is_list: bool = False

    @property
    def duration(self) -> float:
        """In seconds."""
        return self.num_frames / self.fps


class Video(abc.ABC):
    """A video whose frames are decoded when they are asked for."""

    facts: VideoFacts

    def frames(self, indices: Sequence[int]) -> Iterator[Image.Image]:
        """Decodes one frame after the other, and keeps none for longer than the caller.

        Args:
            indices: of the frames, ascending. Of repeated ones, the same image is returned again.

        Returns: upright RGB images, each of the size that the facts say.

        Raises:
            MediaRejection: the video is damaged, or its frames differ in size.
        """
        images = self._distinct(list(dict.fromkeys(indices)))
        for _, repeated in itertools.groupby(indices):
            image = next(images)
            for _ in repeated:
                yield image
            del image  # before the next is decoded

    @abc.abstractmethod
    def _distinct(self, indices: Sequence[int]) -> Iterator[Image.Image]:
        """As `frames`, for indices that do not repeat."""

    def _of_size(self, image: Image.Image) -> Image.Image:
        if image.size != (self.facts.width, self.facts.height):
            first = f"{self.facts.width} x {self.facts.height}"
            raise MediaRejection(
                f"A video's first frame has {first} pixels, but another has {image.width} x {image.height}. "
                "Send frames of one size."
            )
        return image


def check_num_frames(num_frames: int) -> None:
    """
    Raises:
        MediaRejection: a video has more than are searched.
    """
    if num_frames > _MAX_FRAMES:
        raise MediaRejection(f"A video has more than {_MAX_FRAMES} frames. Send a shorter one.")
