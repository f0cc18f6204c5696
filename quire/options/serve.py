"""Options of `quire serve`, which starts the whole stack as local processes."""

from __future__ import annotations

from dataclasses import dataclass

from quire.options.base import option
from quire.options.data_parallel import DataParallelOptions


@dataclass(frozen=True)
class ServeOptions:
    """Local stack."""

    startup_timeout_seconds: float = option(1800.0, "Maximum time for the whole stack to become ready.", minimum=1.0)
    api_server_count: int = option(
        1, "Number of gateways that share the port; the operating system distributes connections among them.",
        aliases=("-asc",),
        minimum=1, maximum=64,
    )  # fmt: skip
    encoder_workers: int = option(
        0, "Number of workers that only encode images, videos and audio (--mm-encoder-only), for the others of this "
        "stack. They take the GPUs that these leave over, or share theirs.", minimum=0, maximum=64,
    )  # fmt: skip
    device_ids: tuple[str, ...] = option(
        (), "GPUs that the engines share out, as in CUDA_VISIBLE_DEVICES: numbers or UUIDs. Takes several words. "
        "Default: all.", following=r"\d+|(GPU|MIG)-[\w/-]+", metavar="ID...",
    )  # fmt: skip
    data_parallel: DataParallelOptions = DataParallelOptions()
