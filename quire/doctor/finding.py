"""The result of a check."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Grade(StrEnum):
    """Severity of a finding."""

    FINE = "ok"
    WARNING = "warning"  # the stack would start, but perform worse than it could
    PROBLEM = "problem"  # the stack would not start, or not keep running


@dataclass(frozen=True)
class Finding:
    """One thing that was checked, with advice if it is not fine."""

    grade: Grade
    subject: str
    text: str


def fine(subject: str, text: str) -> Finding:
    """A finding that is as it should be."""
    return Finding(Grade.FINE, subject, text)


def warning(subject: str, text: str) -> Finding:
    """A finding of Grade.WARNING."""
    return Finding(Grade.WARNING, subject, text)


def problem(subject: str, text: str) -> Finding:
    """A finding of Grade.PROBLEM."""
    return Finding(Grade.PROBLEM, subject, text)
