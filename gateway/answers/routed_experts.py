"""The experts that tokens were routed to, as answers return them."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RoutedExpertsForm:
    """How engines write them down: see quire.v1.RoutedExpertsForm."""

    num_layers: int
    experts_per_token: int
    id_bytes: int

    def encode(self, rows: Sequence[bytes]) -> str | None:
        """An array [tokens, layers, experts per token] of uint8 or uint16, as an .npy file in base64 like vLLM's.

        None if there are no rows, as in the answer to a request that generates nothing.
        """
        import numpy as np  # late: a third of a gateway's start

        if not rows:
            return None
        ids = np.frombuffer(b"".join(rows), f"<u{self.id_bytes}")
        file = io.BytesIO()
        np.save(file, ids.reshape(-1, self.num_layers, self.experts_per_token))
        return base64.b64encode(file.getbuffer()).decode()
