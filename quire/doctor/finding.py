"""What an examination finds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Grade(StrEnum):
    """How bad it is."""

    FINE = "ok"
    WARNING = "warning"  # it would start, and do worse than it could
    PROBLEM = "problem"  # it would not start, or not stay


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at, with what to do where it is not fine."""

    grade: Grade
    subject: str
    text: str


def fine(subject: str, text: str) -> Finding:
    """As it should be."""
    return Finding(Grade.FINE, subject, text)


def warning(subject: str, text: str) -> Finding:
    """See Grade.WARNING."""
    return Finding(Grade.WARNING, subject, text)


def problem(subject: str, text: str) -> Finding:
    """See Grade.PROBLEM."""
    return Finding(Grade.PROBLEM, subject, text)
