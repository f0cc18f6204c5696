"""Options of an engine whose ranks are on several nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from quire.options.base import option


@dataclass(frozen=True)
class NodeOptions:
    """One engine over several nodes."""

    group: ClassVar[str] = "ParallelConfig"

    nnodes: int = option(
        1, "Number of nodes that share the ranks of one engine evenly. All but the first one run only ranks, and need "
        "the same options of the engine as the first one.", aliases=("-n",), minimum=1, maximum=256,
    )  # fmt: skip
    node_rank: int = option(
        0, "Number of this node among --nnodes, from 0. Under `quire serve`, all but node 0 need --headless.",
        aliases=("-r",), minimum=0, maximum=255,
    )  # fmt: skip
    master_addr: str | None = option(
        None, "Address of node 0, as seen from all nodes; node 0 listens there. Needed with --nnodes.", metavar="HOST"
    )
    master_port: int = option(
        29501, "Port at --master-addr where node 0 waits for the other nodes.", minimum=1, maximum=65535
    )
    node_join_timeout_seconds: float = option(
        600.0, "Maximum time that node 0 waits for the others to join, and the others for node 0.", minimum=1.0
    )
