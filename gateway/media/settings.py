"""Settings for a conversation's images, videos and audio that a request brings."""

from __future__ import annotations

from typing import Any, Protocol

from quire.errors import InvalidRequest
from quire.options.multimodal import check_media_io_kwargs

_USES = {"mm_processor_kwargs": "the image processor", "media_io_kwargs": "reading files"}


class MediaSettings(Protocol):
    """A request with these fields."""

    mm_processor_kwargs: dict[str, Any] | None
    media_io_kwargs: dict[str, Any] | None


def check_media_settings(body: MediaSettings, *, are_trusted: bool) -> None:
    """Checks the settings of a request that may have images, videos and audio.

    Raises:
        InvalidRequest: it brings some, which the server does not allow, or media_io_kwargs is malformed.
    """
    for name, use in _USES.items():
        if getattr(body, name) and not are_trusted:
            raise InvalidRequest(
                f"This server does not accept settings for {use} from requests; start it with "
                "--trust-request-mm-kwargs.",
                parameter=name,
            )
    try:
        check_media_io_kwargs(body.media_io_kwargs or {})
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"media_io_kwargs: {error}", parameter="media_io_kwargs") from None


def check_no_media_settings(body: MediaSettings) -> None:
    """Checks the settings of a request that takes text only.

    Raises:
        InvalidRequest: it brings some.
    """
    for name in _USES:
        if getattr(body, name):
            raise InvalidRequest(
                f"{name} is refused: it is about images, videos and audio, and this request takes text only. Leave "
                "it out.",
                parameter=name,
            )
