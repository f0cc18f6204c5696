"""Draws loss curves: `python -m demo_model.curve OUT.svg NAME.curve.jsonl ...`."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 720, 320, 60, 40
_COLORS = ("#1f6feb", "#d29922", "#2da44e")


def read(path: Path) -> list[tuple[float, float]]:
    """(millions of tokens, loss) of each point."""
    points = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [(point["tokens"] / 1e6, point["loss"]) for point in points]


def draw(curves: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """An SVG picture; the loss is on a logarithmic scale."""
    most = max(tokens for curve in curves.values() for tokens, _ in curve)
    low = min(loss for curve in curves.values() for _, loss in curve)
    bottom, top = math.floor(math.log10(low)), 1

    def place(tokens: float, loss: float) -> str:
        x = _LEFT + tokens / most * (_WIDTH - _LEFT - 20)
        y = 20 + (top - math.log10(loss)) / (top - bottom) * (_HEIGHT - _BOTTOM - 20)
        return f"{x:.1f},{y:.1f}"

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}">',
        "<style>text {font: 12px sans-serif}</style>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_WIDTH / 2}" y="{_HEIGHT - 6}" text-anchor="middle">million tokens read</text>',
        '<text x="14" y="150" text-anchor="middle" transform="rotate(-90 14 150)">nats per learned token</text>',
    ]
    for exponent in range(bottom, top + 1):
        start, end = place(0, 10.0**exponent), place(most, 10.0**exponent)
        parts.append(f'<polyline points="{start} {end}" stroke="#ddd"/>')
        parts.append(
            f'<text x="{_LEFT - 6}" y="{float(start.split(",")[1]) + 4}" text-anchor="end">{10.0**exponent:g}</text>'
        )
    for tick in range(6):
        x = place(most * tick / 5, 10.0**bottom).split(",")[0]
        parts.append(f'<text x="{x}" y="{_HEIGHT - 24}" text-anchor="middle">{most * tick / 5:.0f}</text>')
    for (name, curve), color in zip(curves.items(), _COLORS, strict=False):
        line = " ".join(place(tokens, loss) for tokens, loss in curve)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="1.5"/>')
        y = 30 + 16 * list(curves).index(name)
        parts.append(f'<text x="{_WIDTH - 30}" y="{y}" text-anchor="end" fill="{color}">{name}</text>')
    return "\n".join((*parts, "</svg>\n"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("picture", type=Path)
    parser.add_argument("curves", type=Path, nargs="+")
    arguments = parser.parse_args()
    curves = {path.name.removesuffix(".curve.jsonl"): read(path) for path in arguments.curves}
    arguments.picture.write_text(draw(curves), encoding="utf-8")


if __name__ == "__main__":
    main()
