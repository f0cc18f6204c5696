"""A constraint as it is asked of the tokenizer service."""

from __future__ import annotations

from dataclasses import dataclass

from quire.structured.base import ConstraintRequest


@dataclass(frozen=True)
class AskedConstraint:
    """What an output has to be, and how a backend is chosen for it; nobody has looked into it yet."""

    request: ConstraintRequest
    backend: str = ""  # empty or auto for the service's own choice
    disable_fallback: bool = False  # rather fail than have another backend follow it
