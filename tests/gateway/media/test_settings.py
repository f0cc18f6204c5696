"""Which settings for images, videos and audio a request may bring: a server must be told to trust requests."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.media.settings import check_media_settings, check_no_media_settings
from gateway.protocol.tokens import TokenizeRequest
from quire.errors import InvalidRequest

SETTINGS = {"mm_processor_kwargs": {"max_pixels": 784}, "media_io_kwargs": {"video": {"num_frames": 16, "fps": 0.5}}}


def body(**fields: Any) -> TokenizeRequest:
    return TokenizeRequest(messages=[], **fields)


@pytest.mark.parametrize("name", SETTINGS)
def test_a_server_must_trust_requests(name: str) -> None:
    check_media_settings(body(**{name: SETTINGS[name]}), are_trusted=True)
    with pytest.raises(InvalidRequest, match="start it with --trust-request-mm-kwargs") as caught:
        check_media_settings(body(**{name: SETTINGS[name]}), are_trusted=False)
    assert caught.value.parameter == name


@pytest.mark.parametrize("name", SETTINGS)
def test_a_request_of_text_has_none(name: str) -> None:
    with pytest.raises(InvalidRequest, match=f"{name} is refused: .* text only") as caught:
        check_no_media_settings(body(**{name: SETTINGS[name]}))
    assert caught.value.parameter == name


@pytest.mark.parametrize("neutral", [None, {}])
def test_what_sets_nothing_passes(neutral: dict[str, Any] | None) -> None:
    given = body(mm_processor_kwargs=neutral, media_io_kwargs=neutral)
    check_media_settings(given, are_trusted=False)
    check_no_media_settings(given)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"video": {"num_frames": 0}}, r"video\.num_frames is 0"),
        ({"sound": {}}, "sound is not known"),
        ({"video": 10**4299}, "video: Expected `object`"),
    ],
)
def test_settings_for_reading_files_are_checked(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^media_io_kwargs: {words}") as caught:
        check_media_settings(body(media_io_kwargs=settings), are_trusted=True)
    assert caught.value.parameter == "media_io_kwargs"


def test_settings_that_are_nested_too_deeply() -> None:
    nested: list[Any] = []
    for _ in range(5000):
        nested = [nested]
    with pytest.raises(InvalidRequest, match="media_io_kwargs: "):
        check_media_settings(body(media_io_kwargs={"video": {"fps": nested}}), are_trusted=True)
