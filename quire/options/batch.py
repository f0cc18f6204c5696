"""Options of `quire run-batch`."""

from __future__ import annotations

from dataclasses import dataclass

from quire.options.base import option


@dataclass(frozen=True)
class BatchOptions:
    """A file of requests."""

    input_file: str = option(
        "", "Requests, one a line, in OpenAI's format of batches: a file, or an address to GET it from.",
        aliases=("-i",), metavar="PATH|URL",
    )  # fmt: skip
    output_file: str = option(
        "", "Where the answers go, in the order of the requests: a file, or an address to PUT them to.",
        aliases=("-o",), metavar="PATH|URL",
    )  # fmt: skip
    output_tmp_dir: str | None = option(
        None, "Folder of the answers that are there so far, which a run that is started again goes on from; beside the "
        "output file by default.", metavar="PATH",
    )  # fmt: skip
    max_concurrent_requests: int = option(256, "Requests under way at any time.", minimum=1, maximum=4096)
    enable_metrics: bool = option(False, "Serves /metrics at --url and --port while the batch runs.")
    url: str = option("127.0.0.1", "Address that metrics are served at.")
