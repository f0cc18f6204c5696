"""Plots the distribution of times as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from quire.bench.figures import percentile

_WIDTH, _HEIGHT, _MARGIN, _BINS = 420, 260, 48, 40
_STYLE = (
    "text{font:12px sans-serif;fill:#333}.title{font-size:14px;font-weight:bold}.bar{fill:#4a7fb5}"
    ".axis{stroke:#888;fill:none}.mark{stroke:#c0392b;stroke-dasharray:4 3}"
)


def distributions(title: str, panels: Sequence[tuple[str, Sequence[float]]]) -> str:
    """Draws histograms side by side.

    Args:
        panels: name and values in seconds of each histogram.
    """
    width = _WIDTH * len(panels)
    drawn = "".join(
        f'<g transform="translate({index * _WIDTH} 28)">{_panel(name, values)}</g>'
        for index, (name, values) in enumerate(panels)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {_HEIGHT + 28}" width="{width}" '
        f'height="{_HEIGHT + 28}"><style>{_STYLE}</style><rect width="100%" height="100%" fill="white"/>'
        f'<text class="title" x="{_MARGIN}" y="20">{escape(title)}</text>{drawn}</svg>\n'
    )


def _panel(name: str, seconds: Sequence[float]) -> str:
    values = sorted(value * 1000 for value in seconds)
    if not values:
        return f'<text x="{_MARGIN}" y="40">{escape(name)}: no values</text>'
    low, high = values[0], max(values[-1], values[0] + 1e-3)
    counts = [0] * _BINS
    for value in values:
        counts[min(_BINS - 1, int((value - low) / (high - low) * _BINS))] += 1
    parts = [f'<text x="{_MARGIN}" y="16">{escape(name)} in ms, {len(values)} requests</text>', _bars(counts)]
    for number in (50, 99):
        value = percentile(values, number)
        parts.append(_mark(f"p{number} {value:.1f}", (value - low) / (high - low), 34 + 14 * (number == 99)))
    bottom = _HEIGHT - _MARGIN
    parts.append(
        f'<path class="axis" d="M{_MARGIN} 24V{bottom}H{_WIDTH - 12}"/>'
        f'<text x="{_MARGIN}" y="{bottom + 18}">{low:.1f}</text>'
        f'<text x="{_WIDTH - 12}" y="{bottom + 18}" text-anchor="end">{high:.1f}</text>'
        f'<text x="{_MARGIN - 6}" y="60" text-anchor="end">{max(counts)}</text>'
        f'<text x="{_MARGIN - 6}" y="{bottom}" text-anchor="end">0</text>'
    )
    return "".join(parts)


def _bars(counts: Sequence[int]) -> str:
    step = (_WIDTH - 12 - _MARGIN) / _BINS
    bottom, room = _HEIGHT - _MARGIN, _HEIGHT - _MARGIN - 52
    return "".join(
        f'<rect class="bar" x="{_MARGIN + index * step:.1f}" y="{bottom - room * count / max(counts):.1f}" '
        f'width="{step - 1:.1f}" height="{room * count / max(counts):.1f}"/>'
        for index, count in enumerate(counts)
        if count
    )


def _mark(text: str, place: float, height: int) -> str:
    x = _MARGIN + place * (_WIDTH - 12 - _MARGIN)
    anchor = "end" if place > 0.7 else "start"
    return (
        f'<path class="mark" d="M{x:.1f} 24V{_HEIGHT - _MARGIN}"/>'
        f'<text x="{x + (-4 if place > 0.7 else 4):.1f}" y="{height}" text-anchor="{anchor}">{text}</text>'
    )
