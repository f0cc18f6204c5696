"""Aligned text for terminals."""

from __future__ import annotations

from collections.abc import Sequence

_GAP = "  "


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> list[str]:
    """Lines of the table: the first `left` columns are aligned left, the others, which are numbers, right."""
    cells = [header, *([printable(cell) for cell in row] for row in rows)]
    widths = [max(len(cell) for cell in column) for column in zip(*cells, strict=True)]
    return [
        _GAP.join(
            cell.ljust(width) if index < left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]


def printable(text: str) -> str:
    """The text without anything that would move a terminal's cursor, as it comes from other processes."""
    return "".join(character if character.isprintable() else "?" for character in text)


def percent(part: float, whole: float) -> str:
    """The share in percent, or a dash if the whole is 0."""
    return f"{part / whole:.0%}" if whole else "-"
