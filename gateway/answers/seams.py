"""Joins the texts of pieces of a recording."""

from __future__ import annotations

from unicodedata import east_asian_width

_WIDE = ("W", "F")  # characters of scripts that put no spaces between words


class JoinedTexts:
    """Joins texts as they arrive: without white space around each, and with one space between two.

    Where both sides of a seam are wide characters, nothing comes between them.
    """

    def __init__(self) -> None:
        self._piece = 0
        self._space = ""  # held back: more of the piece's text may follow it
        self._last = ""  # character told
        self._has_begun = False  # whether some of the piece has been told

    def add(self, piece: int, text: str) -> str:
        """Returns what the text of a piece adds to the whole.

        Args:
            piece: its number; the pieces come one after the other.
        """
        if piece != self._piece:
            self._piece, self._space, self._has_begun = piece, "", False
        text = self._space + text if self._has_begun else text.lstrip()
        told = text.rstrip()
        self._space = text[len(told) :]
        if not told:
            return ""
        seam = "" if self._has_begun else _seam(self._last, told[0])
        self._last, self._has_begun = told[-1], True
        return seam + told


def _seam(left: str, right: str) -> str:
    """Returns what comes between two characters; nothing if there is no left one."""
    is_wide = left and all(east_asian_width(each) in _WIDE for each in (left, right))
    return " " if left and not is_wide else ""
