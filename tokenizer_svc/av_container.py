"""Opens files with PyAV, which comes with quire[media]."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from tokenizer_svc.media_rejection import MediaRejection

if TYPE_CHECKING:
    from av.audio.stream import AudioStream
    from av.container import InputContainer
    from av.video.stream import VideoStream


def prepare() -> None:
    """Imports PyAV, if it is installed: done ahead, its libraries do not count for a process's memory limit."""
    with contextlib.suppress(ImportError):
        import av  # noqa: F401


@contextlib.contextmanager
def opened(
    file: bytes,
    container_format: str,
    codecs: Iterable[str],
    options: Mapping[str, str] = {},
    *,
    what: str,
    otherwise: str = "",
    best: str,
) -> Iterator[InputContainer]:
    """The opened file, from which no other file can be reached.

    Args:
        container_format: FFmpeg's name of it. Left to guess, FFmpeg would take playlists too.
        codecs: FFmpeg's names of those that may be used. It has hundreds more, of which many are hardly tested with
            hostile files.
        what: begins the messages of rejections.
        otherwise: what else can be done if PyAV is missing.
        best: a file that is certain to be read.

    Raises:
        MediaRejection: PyAV is not installed, or it cannot read the file, which includes what the caller does with it.
    """
    try:
        import av
    except ImportError:
        raise MediaRejection(
            f"{what} cannot be read: the tokenizer service was installed without quire[media]. Install it{otherwise}."
        ) from None
    try:
        with av.open(
            io.BytesIO(file), "r", format=container_format, options={"codec_whitelist": ",".join(codecs), **options},
            metadata_errors="ignore", io_open=_refuse,
        ) as container:  # fmt: skip
            yield container
    except (MediaRejection, MemoryError):
        raise
    except Exception as error:  # whatever PyAV raises about broken files
        raise broken(what, type(error).__name__, best) from error


def broken(what: str, why: str, best: str) -> MediaRejection:
    """The rejection of a file that cannot be decoded."""
    return MediaRejection(f"{what} cannot be decoded ({why}). Send a whole file, best {best}.")


def check_codec(stream: AudioStream | VideoStream, codecs: Mapping[str, str], what: str) -> None:
    """Checks a stream's codec before it is used, and keeps the decoder to the caller's thread: one for each processor
    of a large machine would take all memory.

    Args:
        codecs: by FFmpeg's name, the usual one.
        what: whose codec it is, in the message.

    Raises:
        MediaRejection: it is none of these.
    """
    from av.codec.context import ThreadType

    name = stream.codec_context.name if stream.codec_context else "unknown"
    if name not in codecs:
        raise MediaRejection(
            f"{what} codec, {name}, is not supported. Use one of {', '.join(dict.fromkeys(codecs.values()))}."
        )
    stream.codec_context.thread_count, stream.codec_context.thread_type = 1, ThreadType.NONE


def _refuse(url: str, flags: int, options: dict[str, str]) -> None:
    """Instead of opening a file that another refers to."""
    raise PermissionError(url)
