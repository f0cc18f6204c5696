"""Options for storing responses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from quire.errors import StartupError
from quire.options.base import option

SQLITE = "sqlite:///"
REDIS = ("redis://", "rediss://", "unix://")


@dataclass(frozen=True)
class ResponsesOptions:
    """Stored responses, to be retrieved, followed, canceled and continued."""

    group: ClassVar[str] = "Frontend"

    responses_store: str = option(
        "", "Where to store responses of /v1/responses: sqlite:///PATH, a file (four slashes for an absolute path), "
        "for the gateways of one machine; or redis://HOST:PORT/DB, for any gateways. Empty stores none; see "
        "docs/responses.md.",
        metavar="URL", secret=True,
    )  # fmt: skip
    responses_store_max_count: int = option(
        10_000, "Maximum number of stored responses; the oldest are removed first.", minimum=1, maximum=10_000_000
    )
    responses_store_max_age_seconds: float = option(30 * 86400.0, "Maximum time to store a response.", minimum=1.0)

    def check(self) -> None:
        """Checks the URL of the store.

        Raises:
            StartupError: no store of this kind exists.
        """
        url = self.responses_store
        if url and not (url.startswith(REDIS) or (url.startswith(SQLITE) and len(url) > len(SQLITE))):
            raise StartupError(
                "--responses-store must be sqlite:///PATH, or begin with redis://, rediss:// or unix://; it begins "
                f"with {url.partition('://')[0][:20]!r}."
            )
