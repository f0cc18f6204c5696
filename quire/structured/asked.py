"""A constraint as a caller asks the tokenizer service for it."""

from __future__ import annotations

from dataclasses import dataclass

from quire.structured.base import ConstraintRequest


@dataclass(frozen=True)
class AskedConstraint:
    """What an output must look like, and how a backend is chosen for it; not validated yet."""

    request: ConstraintRequest
    backend: str = ""  # empty or "auto" means the service's choice
    disable_fallback: bool = False  # fail instead of trying another backend
