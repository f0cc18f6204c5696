"""Layers that share block tables.

A model whose layers all see the same has one group of them. Where some layers have a sliding window and others see
everything (Gemma, gpt-oss), each kind has groups of its own, all of about the same number of layers: a block holds
tokens for the layers of one group, so blocks of all groups come from one pool, and those that a window has passed serve
whoever needs some (as vLLM's hybrid KV cache manager has it).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

MAX_GROUPS = 8  # each costs some microseconds a step


@dataclass(frozen=True)
class LayerGroup:
    """Some layers, and the window that all of them have."""

    window: int | None
    layers: tuple[int, ...]


def group_layers(windows: Mapping[int, int | None]) -> list[LayerGroup]:
    """The groups of a model whose layers have these windows; those that see everything come first.

    Args:
        windows: by layer, of those that attend. Where none does there is a group of no layers.
    """
    if not windows:
        return [LayerGroup(None, ())]
    by_window: dict[int | None, list[int]] = {}
    for layer, window in windows.items():
        by_window.setdefault(window, []).append(layer)
    size = min(map(len, by_window.values()))
    while sum(-(-len(layers) // size) for layers in by_window.values()) > max(MAX_GROUPS, len(by_window)):
        size += 1
    return [
        LayerGroup(window, tuple(layers[start : start + size]))
        for window, layers in sorted(by_window.items(), key=lambda item: (item[0] is not None, item[0]))
        for start in range(0, len(layers), size)
    ]


def most_blocks(window: int | None, num_tokens: int, block_size: int, step_tokens: int) -> int:
    """The most blocks of one group that a sequence of so many tokens holds at once.

    Args:
        step_tokens: the budget of a step; two may be under way before the blocks that the first has passed come back.
    """
    blocks = -(-num_tokens // block_size)
    return blocks if window is None else min(blocks, -(-(window + 2 * step_tokens) // block_size) + 2)
