"""Layers that share block tables.

A model whose layers all see the same has one group of them. Where some layers have a sliding window and others see
everything (Gemma, gpt-oss), each kind has groups of its own, all of about the same number of layers: a block holds
tokens for the layers of one group, so blocks of all groups come from one pool, and those that a window has passed serve
whoever needs some (as vLLM's hybrid KV cache manager has it).

The stages of a pipeline have the same groups, for the same blocks, of which each stage has its own layers.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass

MAX_GROUPS = 8  # each costs some microseconds a step


@dataclass(frozen=True)
class LayerGroup:
    """Some layers, and the window that all of them have."""

    window: int | None
    layers: tuple[int, ...]


def group_layers(windows: Mapping[int, int | None], own: Container[int] | None = None) -> list[LayerGroup]:
    """The groups of a model whose layers have these windows; those that see everything come first.

    Args:
        windows: by layer, of those that attend. Where none does there is a group of no layers.
        own: layers of a stage, where the others are not wanted; a group may have none of them.
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
        LayerGroup(window, group)
        for window, layers in sorted(by_window.items(), key=lambda item: (item[0] is not None, item[0]))
        for group in _dealt([layer for layer in layers if own is None or layer in own], -(-len(layers) // size))
    ]


def _dealt(layers: list[int], groups: int) -> list[tuple[int, ...]]:
    """So many groups, as few layers in each as it goes."""
    size = max(1, -(-len(layers) // groups))
    return [tuple(layers[index * size : (index + 1) * size]) for index in range(groups)]


def most_blocks(window: int | None, num_tokens: int, block_size: int, tokens_under_way: int) -> int:
    """The most blocks of one group that a sequence of so many tokens holds at once.

    Args:
        tokens_under_way: of the steps that may be under way before the blocks that the first has passed come back.
    """
    blocks = -(-num_tokens // block_size)
    return blocks if window is None else min(blocks, -(-(window + tokens_under_way) // block_size) + 2)


def tokens_under_way(step_tokens: int, num_stages: int) -> int:
    """Tokens that the steps compute at most which may be under way at once: one in each stage, and one that waits.

    Args:
        step_tokens: the budget of a step.
    """
    return (num_stages + 1) * step_tokens
