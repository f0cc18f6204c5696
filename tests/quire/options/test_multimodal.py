"""`--limit-mm-per-prompt` in all the forms that vLLM's versions take, and `--media-io-kwargs`."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from click.testing import CliRunner, Result

from quire.cli import cli
from quire.errors import StartupError
from quire.media import MediaKind
from quire.options.command import OptionsCommand
from quire.options.multimodal import ImageProcessorOptions, check_media_io_kwargs, most


@pytest.mark.parametrize(
    ("limit", "images", "videos", "audios"),
    [
        ("", 999, 999, 999), ('{"image": 16, "video": 2}', 16, 2, 999), ('{"images": 16, "videos": 2}', 16, 2, 999),
        ("image=4", 4, 999, 999), ("image=16,video=2", 16, 2, 999), ("videos=2, images=3", 3, 2, 999),
        ("audio=1", 999, 999, 1), ("audios=0,video=0", 999, 0, 0), ('{"image": 0}', 0, 999, 999),
        ('{"video": {"count": 1, "num_frames": 32, "width": 512, "height": 512}}', 999, 1, 999),
        ('{"image": {"count": 5, "width": 512, "height": 512}, "audio": {"count": 1, "length": 9}}', 5, 999, 1),
        ('{"videos": {"count": 0}, "image": 7}', 7, 0, 999),
    ],
)  # fmt: skip
def test_forms(limit: str, images: int, videos: int, audios: int) -> None:
    assert tuple(most(limit, kind) for kind in MediaKind) == (images, videos, audios)


@pytest.mark.parametrize(
    "limit",
    ["4", "image", "image=", "image=-1", "cat=4", '{"image": "4"}', '{"image"', "[1]", '{"video": true}',
     '{"video": {"count": -1}}', '{"video": {"count": {}}}', '{"video": [1]}', "imagess=1", "video=1.5"],
)  # fmt: skip
def test_what_is_malformed_is_explained(limit: str) -> None:
    for kind in MediaKind:
        with pytest.raises(StartupError, match="or image=4,video=1"):
            most(limit, kind)


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ('{"video": {"num_frames": 32}}', 'video needs a number, as in {"video": {"count": 1}}'),
        ('{"video": {"count": 1, "frames": 32}}', "video.frames is not known. Did you mean num_frames?"),
        ('{"image": {"count": 1, "num_frames": 32}}', "Known keys: count, width, height."),
        ('{"audio": {"count": 1, "width": 32}}', "Known keys: count, length."),
    ],
)
def test_sizes_are_those_of_the_kind(limit: str, words: str) -> None:
    with pytest.raises(StartupError) as caught:
        most(limit, MediaKind.VIDEO)
    assert "--limit-mm-per-prompt" in str(caught.value) and words in str(caught.value)


@pytest.mark.parametrize(
    "settings",
    [
        {}, {"video": {}, "image": {}, "audio": {}}, {"video": {"num_frames": 1}}, {"video": {"num_frames": -1}},
        {"video": {"num_frames": 16, "fps": 2}}, {"video": {"fps": 0.1}}, {"video": {"fps": -1}},
        {"video": {"fps": -1.0}},
    ],
)  # fmt: skip
def test_settings_for_reading_files(settings: dict[str, Any]) -> None:
    check_media_io_kwargs(settings)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"vidoe": {}}, "vidoe is not known. Did you mean video? Known keys: image, video, audio."),
        ({"video": 16}, "video: Expected `object`, got `int`, and video is 16."),
        ({"video": {"frames": 16}}, "video.frames is not known. Did you mean num_frames? Known keys: num_frames, fps."),
        ({"image": {"image_mode": "RGB"}}, "image.image_mode is not known: images have no settings yet."),
        ({"audio": {"rate": 1}}, "audio.rate is not known: audio has no settings yet."),
        *(
            ({"video": {"num_frames": value}}, "it must be an integer from 1 to 1000000, or -1 for all frames.")
            for value in (0, -2, 1.5, 16.0, "16", True, None, 10**6 + 1)
        ),
        *(
            ({"video": {"fps": value}}, "it must be a number above 0 and at most 1000000, or -1 for no limit.")
            for value in (0, -2, "2", True, None, float("nan"), float("inf"), [2])
        ),
    ],
)
def test_wrong_settings_for_reading_files(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        check_media_io_kwargs(settings)


def parse(*arguments: str) -> tuple[Result, list[ImageProcessorOptions]]:
    found: list[ImageProcessorOptions] = []
    command = OptionsCommand("test", "", {"images": ImageProcessorOptions}, lambda images: found.append(images))
    return CliRunner().invoke(command, list(arguments)), found


@pytest.mark.parametrize("command", ["serve", "engine", "gateway"])
def test_limits_by_their_keys(command: str) -> None:
    limits = ["--limit-mm-per-prompt.video", "0", "--limit-mm-per-prompt.image=2"]
    model = [] if command == "gateway" else ["model"]
    result = CliRunner().invoke(cli, [command, *model, *limits, "--show-config"])
    assert result.exit_code == 0, result.output
    assert json.dumps('{"video": 0, "image": 2}') in result.output


@pytest.mark.parametrize(
    "arguments",
    [
        ("--media-io-kwargs", '{"video": {"num_frames": 16, "fps": 2}}'),
        ("--media-io-kwargs.video.num_frames", "16", "--media-io-kwargs.video.fps=2"),
    ],
)
def test_the_option_for_reading_files(arguments: tuple[str, ...]) -> None:
    result, (options,) = parse(*arguments)
    assert result.exit_code == 0, result.output
    assert options.media_io_kwargs == {"video": {"num_frames": 16, "fps": 2}}
    assert ImageProcessorOptions().media_io_kwargs == {}
    wrong, _ = parse("--media-io-kwargs", '{"video": {"num_frames": 0}}')
    assert wrong.exit_code == 2
    assert "'--media-io-kwargs': video.num_frames is 0;" in wrong.output
