"""Options for images, videos and audio that requests name by URL."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from quire.errors import StartupError
from quire.media import MediaKind
from quire.options.base import ANY_WORD, option
from quire.options.multimodal import limit_option, most

ANY_PUBLIC_HOST = "*"
_HOST = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True)
class MediaOptions:
    """Images, videos and audio that requests name by URL."""

    group: ClassVar[str] = "MultiModalConfig"

    allowed_local_media_path: str = option(
        "", "Folder whose files requests may name as images, videos and audio by file:// URLs: whoever may send a "
        "request can read those in it. Empty: none.", metavar="FOLDER",
    )  # fmt: skip
    allowed_media_domains: tuple[str, ...] = option(
        (), "Hosts that images, videos and audio may be fetched from by http:// and https:// URLs; none by default. "
        "Takes several words. A listed host may have a private address and any port; * stands for every host with "
        "public addresses, on ports 80 and 443.",
        metavar="HOST", following=ANY_WORD,
    )  # fmt: skip
    image_fetch_timeout_seconds: float = option(
        5.0, "Maximum time for fetching one image.", variables=("VLLM_IMAGE_FETCH_TIMEOUT",), minimum=0.1, maximum=300,
    )  # fmt: skip
    video_fetch_timeout_seconds: float = option(
        30.0, "Maximum time for fetching one video.", variables=("VLLM_VIDEO_FETCH_TIMEOUT",), minimum=0.1, maximum=300,
    )  # fmt: skip
    audio_fetch_timeout_seconds: float = option(
        10.0, "Maximum time for fetching one audio.", variables=("VLLM_AUDIO_FETCH_TIMEOUT",), minimum=0.1, maximum=300,
    )  # fmt: skip

    limit_mm_per_prompt: str = limit_option()
    trust_request_mm_kwargs: bool = option(
        False, "Allows requests to bring settings for the model's image processor (mm_processor_kwargs) and for "
        "reading files (media_io_kwargs), which may make their images, videos and audio take more time, memory and "
        "tokens.",
    )  # fmt: skip

    enable_mm_embeds: bool = option(
        False, "Accepts images as embeddings that were computed elsewhere: image_embeds parts of messages, with "
        "tensors that torch.save wrote, in base64.",
    )  # fmt: skip

    def check(self) -> None:
        """Checks that the folder exists, that the hosts are names, and the limit.

        Raises:
            StartupError: one is not.
        """
        most(self.limit_mm_per_prompt, MediaKind.IMAGE)
        folder = self.allowed_local_media_path
        if folder and not Path(folder).is_dir():
            raise StartupError(f"--allowed-local-media-path {folder} is not a folder. Name one that exists.")
        for host in self.allowed_media_domains:
            if host != ANY_PUBLIC_HOST and not _HOST.fullmatch(host):
                raise StartupError(
                    f"--allowed-media-domains has {host!r}, which is not a host name. Write each host as in "
                    f"images.example.com, without scheme, port or wildcard and separated by spaces, or "
                    f"{ANY_PUBLIC_HOST!r} for every public host."
                )
