"""Groups of layers that share block tables.

A model whose layers all have the same attention window has one group. Where some layers have a sliding window and
others full attention (Gemma, gpt-oss), each kind has its own groups, all with about the same number of layers: a block
holds tokens for the layers of one group, so blocks of all groups come from one pool, and blocks that a window has
passed can be reused by any group (as in vLLM's hybrid KV cache manager). Where layers also differ in their heads, or in
the dtype of their cache, groups of the same size may have different numbers of layers: see attention/mixed.py.

The stages of a pipeline have the same groups and block tables; each stage has its own layers of every group.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass

MAX_GROUPS = 16  # each costs some microseconds per step


@dataclass(frozen=True)
class LayerGroup:
    """Some layers, and their common attention window; None means full attention."""

    window: int | None
    layers: tuple[int, ...]


LayersPerCache = Callable[[int], int]  # see AttentionBackend.layers_per_cache
Itemsize = Callable[[int], int]  # see AttentionBackend.itemsize


def _one(layer: int) -> int:
    return 1


def group_layers(
    windows: Mapping[int, int | None], own: Container[int] | None = None, per_cache: LayersPerCache = _one,
    itemsize: Itemsize = _one,
) -> list[LayerGroup]:  # fmt: skip
    """Groups the layers of a model by window and by how they are cached; groups with full attention come first.

    Args:
        windows: window of each attention layer. If there are none, the result is one group without layers.
        own: layers of this pipeline stage; groups then contain only these, and may be empty. None means all layers.
        per_cache: how many layers like this one share a cache; the same for all layers of a group.
        itemsize: bytes of the numbers that a layer caches; the same.
    """
    if not windows:
        return [LayerGroup(None, ())]
    kinds: dict[tuple[bool, int, int, int], list[int]] = {}  # full attention first, then by window
    for layer, window in windows.items():
        kind = window is not None, window or 0, per_cache(layer), itemsize(layer)
        kinds.setdefault(kind, []).append(layer)
    caches = {kind: -(-len(layers) // kind[2]) for kind, layers in kinds.items()}
    size = min(caches.values())  # caches of a group
    while sum(-(-count // size) for count in caches.values()) > max(MAX_GROUPS, len(kinds)):
        size += 1
    return [
        LayerGroup(kind[1] if kind[0] else None, group)
        for kind, layers in sorted(kinds.items())
        for group in _dealt([layer for layer in layers if own is None or layer in own], -(-caches[kind] // size))
    ]


def most_caches(groups: Sequence[LayerGroup], per_cache: LayersPerCache = _one) -> int:
    """The most caches that any group needs."""
    return max(-(-len(group.layers) // per_cache(group.layers[0])) if group.layers else 0 for group in groups)


def _dealt(layers: list[int], groups: int) -> list[tuple[int, ...]]:
    """Splits the layers into `groups` consecutive groups of nearly equal size."""
    size = max(1, -(-len(layers) // groups))
    return [tuple(layers[index * size : (index + 1) * size]) for index in range(groups)]


def most_blocks(window: int | None, num_tokens: int, block_size: int, tokens_under_way: int) -> int:
    """The most blocks of one group that a sequence of `num_tokens` tokens holds at once.

    Args:
        tokens_under_way: tokens of the steps that may be under way before the blocks that the window has passed in the
            first of them are released.
    """
    blocks = -(-num_tokens // block_size)
    return blocks if window is None else min(blocks, -(-(window + tokens_under_way) // block_size) + 2)


def tokens_under_way(step_tokens: int, num_stages: int) -> int:
    """The most tokens in all steps that may be under way at once: one in each stage, and one that waits.

    Args:
        step_tokens: token budget of a step.
    """
    return (num_stages + 1) * step_tokens
