"""An option of all services, whose load balancers learn of a shutdown a moment later than they do."""

from __future__ import annotations

from typing import Any

from quire.options.base import option


def drain_settle_option() -> Any:
    """Declares --drain-settle-seconds."""
    return option(
        0.0,
        "After SIGTERM, keeps accepting requests for this long while load balancers notice; 5 suits Kubernetes.",
        minimum=0.0,
    )
