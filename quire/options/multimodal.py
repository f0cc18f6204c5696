"""Options of image, video and audio input: shared ones, and those of the tokenizer service and the engine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

import msgspec

from quire.errors import StartupError
from quire.media import MediaKind
from quire.options.base import option
from quire.options.ec_transfer import CONSUMER, PRODUCER, EcTransferConfig
from quire.options.json_object import check_object
from quire.options.kv_transfer import GRPC
from quire.options.nearest import nearest

LIMIT_FLAG = "--limit-mm-per-prompt"
ENCODER_FLAG = "--mm-encoder-only"
_MOST = 999
_COUNT = "count"
# Kind → the keys that its limit may have besides the number, for vLLM, which measures memory with inputs of that size.
_SIZES: Mapping[str, tuple[str, ...]] = MappingProxyType({
    MediaKind.IMAGE: ("width", "height"), MediaKind.VIDEO: ("num_frames", "width", "height"),
    MediaKind.AUDIO: ("length",),
})  # fmt: skip
_GREATEST = 10**6  # of settings that are numbers
# Name → types of its values, and which they may be.
_VIDEO_SETTINGS: Mapping[str, tuple[tuple[type, ...], str]] = MappingProxyType({
    "num_frames": ((int,), f"an integer from 1 to {_GREATEST}, or -1 for all frames"),
    "fps": ((int, float), f"a number above 0 and at most {_GREATEST}, or -1 for no limit"),
})  # fmt: skip
_SHOWN = 50  # maximum characters of a key or value in messages


def limit_option() -> Any:
    """An option shared by the gateway, which counts images, videos and audio, and the engine, which needs no encoder
    without them."""
    return option(
        "", 'Maximum number of images, of videos and of audio files in a prompt: \'{"image": 4, "video": 1}\' or '
        "image=4,video=1; 999 of each by default. With 0 of all that the model reads, its encoder is left out of "
        'memory. Sizes, as in \'{"video": {"count": 1, "num_frames": 32}}\', have no effect.',
        metavar="JSON|KIND=NUMBER,…",
    )  # fmt: skip


def most(limit: str, kind: MediaKind) -> int:
    """The maximum number of images, videos or audio files in a prompt.

    Args:
        limit: a value of the shared option.

    Raises:
        StartupError: it is malformed.
    """
    found = {}
    for name, value in _pairs(limit):
        singular = name.removesuffix("s")
        if singular not in _SIZES:
            raise _wrong(limit)
        number = _count(limit, singular, value) if isinstance(value, dict) else value
        if type(number) is not int or number < 0:
            raise _wrong(limit)
        found[singular] = number
    return found.get(kind, _MOST)


def _pairs(limit: str) -> list[tuple[str, Any]]:
    text = limit.strip()
    if not text:
        return []
    if text.startswith("{"):
        try:
            return list(json.loads(text).items())
        except ValueError:
            raise _wrong(limit) from None
    pairs = [part.partition("=") for part in text.split(",")]
    return [(kind.strip(), int(number) if number.strip().isdecimal() else None) for kind, _, number in pairs]


def _count(limit: str, kind: str, value: Mapping[str, Any]) -> Any:
    """The number in a limit that also has sizes."""
    known = (_COUNT, *_SIZES[kind])
    for key in value:
        if key not in known:
            raise StartupError(
                f"{LIMIT_FLAG}: {kind}.{key[:_SHOWN]} is not known.{nearest(key, known)} Known keys: "
                f"{', '.join(known)}."
            )
    if _COUNT not in value:
        raise StartupError(f'{LIMIT_FLAG} {limit[:100]}: {kind} needs a number, as in {{"{kind}": {{"{_COUNT}": 1}}}}.')
    return value[_COUNT]


def _wrong(limit: str) -> StartupError:
    return StartupError(
        f'{LIMIT_FLAG} {limit[:100]}: write \'{{"image": 4, "video": 1}}\' or image=4,video=1, with a number from 0 '
        "for each of image, video and audio."
    )


class MediaIoKwargs(msgspec.Struct):
    """Keys of --media-io-kwargs, and of the request field of that name."""

    image: dict[str, Any] = {}
    video: dict[str, Any] = {}
    audio: dict[str, Any] = {}

    def __post_init__(self) -> None:
        """
        Raises:
            ValueError: a kind has a setting that is not known, or not valid.
        """
        if self.image:
            raise ValueError(f"image.{next(iter(self.image))[:_SHOWN]} is not known: images have no settings yet.")
        if self.audio:
            raise ValueError(f"audio.{next(iter(self.audio))[:_SHOWN]} is not known: audio has no settings yet.")
        for name, value in self.video.items():
            _check_video_setting(name, value)


def _check_video_setting(name: str, value: Any) -> None:
    if name not in _VIDEO_SETTINGS:
        shown = name[:_SHOWN]
        raise ValueError(
            f"video.{shown} is not known.{nearest(shown, _VIDEO_SETTINGS)} Known keys: {', '.join(_VIDEO_SETTINGS)}."
        )
    types, wanted = _VIDEO_SETTINGS[name]
    if type(value) not in types or not (0 < value <= _GREATEST or value == -1):
        raise ValueError(f"video.{name} is {json.dumps(value)[:_SHOWN]}; it must be {wanted}.")


def check_media_io_kwargs(settings: Mapping[str, Any]) -> None:
    """Checks settings for reading files, by kind.

    Raises:
        ValueError: a kind or one of its settings is not known, or not valid.
    """
    check_object(settings, MediaIoKwargs)


@dataclass(frozen=True)
class ImageProcessorOptions:
    """Preparation of images, videos and audio."""

    group: ClassVar[str] = "MultiModalConfig"

    mm_processor_kwargs: dict[str, Any] = option(
        {}, 'Settings for the model\'s image processor, as JSON, such as {"size": {"longest_edge": 1003520}}; those '
        "that the model comes with are the defaults. They change how many tokens an image takes.",
    )  # fmt: skip
    media_io_kwargs: dict[str, Any] = option(
        {}, 'Settings for reading files, as JSON, such as {"video": {"num_frames": 16, "fps": 2}}. num_frames: how '
        "many frames of a video are read, spread evenly over it (-1: all). fps: at most so many for each of its "
        "seconds (-1: no limit). By default two for each second for Qwen's models, and 32 for others.",
        schema=MediaIoKwargs,
    )  # fmt: skip
    video_pruning_rate: float = option(
        0.0, "Share of a video's tokens that is left out: those that differ least from the ones a frame before (EVS). "
        "For Qwen2-VL and Qwen2.5-VL.", minimum=0.0, maximum=1.0,
    )  # fmt: skip
    mm_processor_cache_gb: float = option(
        4.0, "GiB of memory for images that have been prepared, so that those of a conversation are prepared once; 0 "
        "for none.", minimum=0.0, variables=("VLLM_MM_INPUT_CACHE_GIB",),
    )  # fmt: skip
    interleave_mm_strings: bool = option(
        False, "Where the chat template receives a message's content as a string: leaves images where they are among "
        "the texts, instead of placing them before all texts.",
    )  # fmt: skip


@dataclass(frozen=True)
class ImageEncoderOptions:
    """Image encoder of the model."""

    group: ClassVar[str] = "MultiModalConfig"

    limit_mm_per_prompt: str = limit_option()
    mm_encoder_only: bool = option(
        False, "Loads the encoder of images, videos and audio only, and encodes them for the workers that generate "
        "(--ec-transfer-config). Needs a router that knows both.",
    )  # fmt: skip
    ec_transfer_config: dict[str, Any] = option(
        {}, "Has images, videos and audio encoded by workers with --mm-encoder-only, as JSON or key by key. Keys: "
        "ec_connector (GrpcConnector), ec_role (ec_consumer for a worker that generates; ec_producer, which "
        "--mm-encoder-only implies), ec_buffer_size (bytes of embeddings that an ec_producer keeps: 1e9).",
        schema=EcTransferConfig,
    )  # fmt: skip

    def encoding(self) -> EcTransferConfig:
        """The settings of --ec-transfer-config, which the command line has checked, with the role that is implied.

        Raises:
            StartupError: the role is not the one of --mm-encoder-only.
        """
        config = msgspec.convert(self.ec_transfer_config, EcTransferConfig)
        if self.mm_encoder_only and config.ec_role == CONSUMER:
            raise StartupError(
                f"{ENCODER_FLAG} contradicts ec_role {CONSUMER} of --ec-transfer-config: use {PRODUCER}, or leave one "
                "of them out."
            )
        if config.ec_role == PRODUCER and not self.mm_encoder_only:
            raise StartupError(
                f"ec_role {PRODUCER} of --ec-transfer-config is for workers that only encode: add {ENCODER_FLAG}, or "
                f"use {CONSUMER}."
            )
        implied = {"ec_connector": GRPC, "ec_role": PRODUCER} if self.mm_encoder_only else {}
        return msgspec.structs.replace(config, **implied)
