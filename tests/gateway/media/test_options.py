"""Options for images, videos and audio that requests name by URL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from quire.errors import StartupError
from quire.options.command import OptionsCommand
from quire.options.media import MediaOptions


def parse(*arguments: str, env: dict[str, str] | None = None) -> MediaOptions:
    found: list[MediaOptions] = []
    command = OptionsCommand("test", "", {"media": MediaOptions}, lambda media: found.append(media))
    result = CliRunner().invoke(command, list(arguments), env=env)
    assert result.exit_code == 0, result.output
    return found[0]


@pytest.mark.parametrize(
    ("arguments", "env"),
    [
        (("--allowed-media-domains", "a.example", "b.example"), {}),
        (("--allowed-media-domains", '["a.example", "b.example"]'), {}),
        (("--allowed-media-domains=a.example", "--allowed-media-domains=b.example"), {}),
        ((), {"QUIRE_ALLOWED_MEDIA_DOMAINS": "a.example b.example"}),
    ],
)
def test_hosts_are_written_in_many_ways(arguments: tuple[str, ...], env: dict[str, str]) -> None:
    assert parse(*arguments, env=env).allowed_media_domains == ("a.example", "b.example")


def test_nothing_is_allowed_by_default() -> None:
    assert parse() == MediaOptions("", (), 5.0, 30.0, 10.0)


@pytest.mark.parametrize("kind", ["image", "video", "audio"])
def test_the_time_limits_have_vllms_names_too(kind: str) -> None:
    found = parse(env={f"VLLM_{kind.upper()}_FETCH_TIMEOUT": "20"})
    expected: dict[str, Any] = {f"{kind}_fetch_timeout_seconds": 20.0}
    assert found == MediaOptions(**expected)
    assert parse(f"--{kind}-fetch-timeout-seconds", "20") == found


@pytest.mark.parametrize(
    "host",
    ["", "https://a.example", "a.example:80", "*.example", "a.example,b.example", "user@a.example", "a.example/images"],
)
def test_what_is_no_host_name_is_refused_at_the_start(host: str) -> None:
    MediaOptions(allowed_media_domains=("*", "a.example", "10.0.0.1")).check()
    with pytest.raises(StartupError, match="--allowed-media-domains"):
        MediaOptions(allowed_media_domains=("a.example", host)).check()


def test_the_folder_must_exist(tmp_path: Path) -> None:
    MediaOptions(allowed_local_media_path=str(tmp_path)).check()
    with pytest.raises(StartupError, match="--allowed-local-media-path"):
        MediaOptions(allowed_local_media_path=str(tmp_path / "none")).check()
