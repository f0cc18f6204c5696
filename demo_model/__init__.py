"""The model in the box: how it is made, and where it lies."""

from __future__ import annotations
