"""Videos that PyAV decodes, which comes with quire[media]."""

from __future__ import annotations

import contextlib
import itertools
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from PIL import Image

from tokenizer_svc.av_container import broken, check_codec, opened
from tokenizer_svc.media_rejection import MediaRejection
from tokenizer_svc.video import MAX_PIXELS, UNKNOWN_FPS, Video, VideoFacts, check_num_frames

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

# By FFmpeg's name.
_CODECS = {
    "h264": "H.264", "hevc": "H.265", "vp8": "VP8", "vp9": "VP9", "libdav1d": "AV1", "av1": "AV1",
    "mpeg4": "MPEG-4", "mjpeg": "Motion JPEG",
}  # fmt: skip
_LIMIT = {"max_pixels": str(MAX_PIXELS)}
_WHAT, _BEST = "A video", "an MP4 with H.264"


class Film(Video):
    """A file that PyAV decodes.

    Opened anew for each pass over it, as not every file can be wound back.
    """

    def __init__(self, file: bytes, container_format: str) -> None:
        self._file, self._format = file, container_format
        with self._opened() as (container, stream):
            first, packets = _survey(container, stream)
            times = sorted(time for time, _ in packets)
            seconds = float((times[-1] - times[0]) * (stream.time_base or 0))
            fps = _frame_rate(stream.average_rate, len(times), seconds)
            self._coded_size, self._turns = (first.width, first.height), _turns(first)
            image = self._upright(first)
        self.facts = VideoFacts(len(times), fps, image.width, image.height)
        # AVI has no presentation times, and what FFmpeg makes up is out of order: its frames can only be counted.
        timed = container_format != "avi" and len(set(times)) == len(times)
        self._times = times if timed else []
        self._keys = sorted(bisect_left(times, time) for time, is_key in packets if is_key) if timed else []

    def _distinct(self, indices: Sequence[int]) -> Iterator[Image.Image]:
        with self._opened() as (container, stream):
            decoded, current = iter(container.decode(stream)), -1
            for index in indices:
                num_keys = bisect_right(self._keys, index)
                if num_keys and self._keys[num_keys - 1] > current + 1:  # what is between need not be decoded
                    decoded, current = self._decoded_from(self._keys[:num_keys], index, container, stream), -1
                # A packet may hold no picture, as with VP8's hidden frames: the next is shown instead.
                if current < index:
                    for frame in decoded:
                        current = self._index(frame, current + 1)
                        if current >= index:
                            break
                    else:
                        raise _broken(f"frame {index} of {self.facts.num_frames} is missing")
                yield self._upright(frame)

    def _decoded_from(
        self, keys: Sequence[int], index: int, container: InputContainer, stream: VideoStream
    ) -> Iterator[VideoFrame]:
        """Decodes from the last key frame on that leads to the frame of an index.

        The last before it may not, as H.264's gradual refreshes count as key frames but show nothing until complete.
        """
        for key in reversed(keys):
            container.seek(self._times[key], stream=stream)
            decoded = iter(container.decode(stream))
            first = next(decoded, None)
            if first is not None and self._index(first, 0) <= index:
                return itertools.chain([first], decoded)
        return iter(())

    def _index(self, frame: VideoFrame, counted: int) -> int:
        return bisect_left(self._times, frame.pts) if self._times and frame.pts is not None else counted

    def _upright(self, frame: VideoFrame) -> Image.Image:
        """In RGB; also scaled like the first frame, as recordings of calls change their size."""
        width, height = self._coded_size
        image: Image.Image = frame.to_image(width=width, height=height, threads=1)  # type: ignore[no-untyped-call]  # not typed in PyAV
        for turn in self._turns:
            image = image.transpose(turn)
        return image

    @contextlib.contextmanager
    def _opened(self) -> Iterator[tuple[InputContainer, VideoStream]]:
        with opened(
            self._file, self._format, _CODECS, _LIMIT, what=_WHAT, best=_BEST,
            otherwise=", or send a GIF or WebP file, or a list of images",
        ) as container:  # fmt: skip
            import av

            try:
                yield container, _stream(container)
            except av.ArgumentError:  # of a decoder that is to exceed `max_pixels`
                raise _too_large("too many") from None


def _broken(why: str) -> MediaRejection:
    return broken(_WHAT, why, _BEST)


def _too_large(pixels: str) -> MediaRejection:
    return MediaRejection(
        f"A video has frames of {pixels} pixels; at most {MAX_PIXELS} are allowed. Send a smaller one."
    )


def _stream(container: InputContainer) -> VideoStream:
    """The stream with the video, ready to be decoded."""
    from av.stream import Disposition

    found = [stream for stream in container.streams.video if not stream.disposition & Disposition.attached_pic]
    if not found:
        raise MediaRejection("A video file has no pictures. Send one that has more than sound.")
    (stream, *_) = found
    check_codec(stream, _CODECS, "A video's")
    if stream.width * stream.height > MAX_PIXELS:
        raise _too_large(f"{stream.width} x {stream.height}")
    stream.codec_context.options = _LIMIT  # those of `open` do not get there
    return stream


def _survey(container: InputContainer, stream: VideoStream) -> tuple[VideoFrame, list[tuple[int, bool]]]:
    """Decodes the first frame only.

    Returns: the frame; and of each frame its time, and whether decoding can begin with it.
    """
    first, packets = None, []
    for packet in container.demux(stream):
        if first is None:
            first = next(iter(packet.decode()), None)
        time = packet.dts if packet.pts is None else packet.pts
        if packet.size and not packet.is_discard and time is not None:
            packets.append((time, packet.is_keyframe))
            check_num_frames(len(packets))
    if first is None or not packets:
        raise _broken("it has no frames")
    return first, packets


def _frame_rate(declared: Fraction | None, num_frames: int, seconds: float) -> float:
    """Frames per second.

    Args:
        seconds: from the first frame to the last.
    """
    if declared and declared > 0 and abs(declared * seconds + 1 - num_frames) < 1:
        return float(declared)  # better than times that are rounded to milliseconds
    return (num_frames - 1) / seconds if seconds > 0 else UNKNOWN_FPS


def _turns(frame: VideoFrame) -> list[Image.Transpose]:
    """What makes the frame upright, one after the other."""
    matrix: Any = frame.side_data.get("DISPLAYMATRIX")
    if matrix is None:
        return []
    a, b, _, c, d, *_ = struct.unpack("9i", bytes(matrix))  # takes a point (x, y) to (ax + cy, bx + dy)
    swapped = abs(b) + abs(c) > abs(a) + abs(d)
    turns = {
        Image.Transpose.TRANSPOSE: swapped,
        Image.Transpose.FLIP_LEFT_RIGHT: (c if swapped else a) < 0,
        Image.Transpose.FLIP_TOP_BOTTOM: (b if swapped else d) < 0,
    }
    return [turn for turn, needed in turns.items() if needed]
