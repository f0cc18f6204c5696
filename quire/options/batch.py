"""Options of `quire run-batch`."""

from __future__ import annotations

from dataclasses import dataclass

from quire.options.base import option


@dataclass(frozen=True)
class BatchOptions:
    """Batches of requests from a file."""

    input_file: str = option(
        "", "Requests, one per line, in OpenAI's batch format: a file, or a URL to GET it from.",
        aliases=("-i",), metavar="PATH|URL",
    )  # fmt: skip
    output_file: str = option(
        "", "Where the answers go, in the order of the requests: a file, or a URL to PUT them to.",
        aliases=("-o",), metavar="PATH|URL",
    )  # fmt: skip
    output_tmp_dir: str | None = option(
        None, "Folder for the answers so far, from which a restarted run resumes. Default: beside the output file.",
        metavar="PATH",
    )  # fmt: skip
    max_concurrent_requests: int = option(256, "Maximum number of concurrent requests.", minimum=1, maximum=4096)
    enable_metrics: bool = option(False, "Serves /metrics at --url and --port while the batch runs.")
    url: str = option("127.0.0.1", "Address at which metrics are served.")
