"""Curves as an SVG picture, one panel below the other."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_WIDTH, _HEIGHT = 720, 280  # of a panel
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 150, 20, 45
_COLORS = ("#1f6feb", "#d29922", "#2da44e", "#cf222e", "#8250df", "#57606a")


@dataclass(frozen=True)
class Panel:
    """Several curves over one another."""

    x_label: str
    y_label: str
    curves: Mapping[str, Sequence[tuple[float, float]]]
    logarithmic: bool = False  # the y axis


def draw(panels: Sequence[Panel]) -> str:
    """The picture; a curve has the same color in all panels."""
    height = _HEIGHT * len(panels)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}">',
        "<style>text {font: 12px sans-serif}</style>",
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
    ]
    for number, panel in enumerate(panels):
        parts += [f'<g transform="translate(0 {number * _HEIGHT})">', *_draw_panel(panel), "</g>"]
    return "\n".join((*parts, "</svg>\n"))


def _draw_panel(panel: Panel) -> list[str]:
    points = [point for curve in panel.curves.values() for point in curve]
    low_x, high_x = min(x for x, _ in points), max(x for x, _ in points)
    ticks = _ticks(max(y for _, y in points), min(y for _, y in points), panel.logarithmic)

    def scale(y: float) -> float:
        return math.log10(y) if panel.logarithmic else y

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - low_x) / (high_x - low_x or 1)
        up = (scale(y) - scale(ticks[0])) / (scale(ticks[-1]) - scale(ticks[0]))
        return (
            round(_LEFT + across * (_WIDTH - _LEFT - _RIGHT), 1),
            round(_HEIGHT - _BOTTOM - up * (_HEIGHT - _TOP - _BOTTOM), 1),
        )

    parts = [
        f'<text x="{(_WIDTH + _LEFT - _RIGHT) / 2}" y="{_HEIGHT - 8}" text-anchor="middle">{panel.x_label}</text>',
        f'<text transform="translate(16 {_HEIGHT / 2}) rotate(-90)" text-anchor="middle">{panel.y_label}</text>',
    ]
    for tick in ticks:
        (left, y), (right, _) = place(low_x, tick), place(high_x, tick)
        parts.append(f'<polyline points="{left},{y} {right},{y}" stroke="#ddd"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4}" text-anchor="end">{tick:g}</text>')
    for x in sorted({x for x, _ in points}):
        across, bottom = place(x, ticks[0])
        parts.append(f'<text x="{across}" y="{bottom + 16}" text-anchor="middle">{x:g}</text>')
    for number, (name, curve) in enumerate(panel.curves.items()):
        color = _COLORS[number % len(_COLORS)]
        line = " ".join(f"{x},{y}" for x, y in (place(*point) for point in curve))
        parts.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="1.5"/>')
        parts.append(f'<text x="{_WIDTH - _RIGHT + 12}" y="{_TOP + 16 * (number + 1)}" fill="{color}">{name}</text>')
    return parts


def _ticks(highest: float, lowest: float, logarithmic: bool) -> list[float]:
    """Of the y axis, the first and the last at its ends."""
    if logarithmic:
        return [10.0**power for power in range(math.floor(math.log10(lowest)), math.ceil(math.log10(highest)) + 1)]
    step = 10.0 ** math.floor(math.log10(highest or 1))
    step = step / 5 if highest / step < 2 else step
    return [round(step * number, 6) for number in range(math.ceil(highest / step) + 1)]
