"""What Transformers calls to attend (its attention interface), with the paged cache behind it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from engine_svc.attention.base import AttentionBackend, AttentionOptions
from engine_svc.models.attention import LayerCache
from quire.errors import StartupError

# Under the first, models make no masks; under the other they ask for some, which tell what they would hide.
NAME, WATCHED = "quire-paged", "quire-watched"
# What layers pass to an attention function: what ours obeys, and what says nothing new to it.
_OBEYED = {"scaling", "sliding_window", "softcap", "s_aux"}
_SILENT = {"cache_position", "dropout", "is_causal", "output_attentions", "position_ids", "use_cache"}


@dataclass(frozen=True)
class Heads:
    """What attention is called with."""

    num_heads: int
    num_kv_heads: int
    head_dim: int  # the longer of keys' and values'


class PagedInterface:
    """Attends in the order in which a model's layers call it, which is the same in every forward pass.

    A cache belongs to a call: layers may attend twice, or be run again and again. Where calls differ in their heads,
    the cache has the most and the longest: heads of keys and values are repeated, and filled up with zeros.
    """

    attention: AttentionBackend

    def __init__(self) -> None:
        self._heads: list[Heads] = []
        self.windows: list[int | None] = []  # by call
        self._options: dict[int, AttentionOptions] = {}  # by call
        self._caches: Sequence[LayerCache] = ()
        self._calls = 0

    def watch(self) -> None:
        """The next forward pass, under the name WATCHED, attends to nothing and says which calls there are."""
        ALL_ATTENTION_FUNCTIONS.register(WATCHED, self._probe)
        ALL_MASK_ATTENTION_FUNCTIONS.register(WATCHED, _mark)

    def begin(self, caches: Sequence[LayerCache]) -> None:
        """The next forward pass attends to these caches, one for each call."""
        ALL_ATTENTION_FUNCTIONS.register(NAME, self._attend)
        self._caches, self._calls = caches, 0

    def heads(self) -> Heads:
        """Those of the cache.

        Raises:
            StartupError: no layer has called, or they cannot share a form of cache.
        """
        if not self._heads:
            raise StartupError("The model's layers do not call Transformers' attention interface.")
        most = Heads(*(max(getattr(each, name) for each in self._heads) for name in Heads.__dataclass_fields__))
        for each in self._heads:
            if each.num_heads != most.num_heads or most.num_kv_heads % each.num_kv_heads:
                raise StartupError(
                    f"The model's layers differ in their attention heads (some have {each.num_heads} of queries and "
                    f"{each.num_kv_heads} of keys, others {most.num_heads} and {most.num_kv_heads}), which one form of "
                    "cache cannot hold."
                )
        return most

    def _probe(
        self,
        module: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        *_: Any,
        **named: Any,
    ) -> tuple[torch.Tensor, None]:
        """Notes the call, and whether it wants anything that ours does not know."""
        kind = type(module).__name__
        unknown = sorted(name for name, given in named.items() if given is not None and name not in _OBEYED | _SILENT)
        if unknown:
            raise StartupError(f"{kind} cannot use paged attention: it wants {', '.join(unknown)}.")
        causal = named.get("is_causal")
        if (getattr(module, "is_causal", True) if causal is None else causal) is False:
            raise StartupError(f"{kind} cannot use paged attention: tokens attend to those behind them.")
        self._heads.append(Heads(query.shape[1], key.shape[1], max(query.shape[-1], value.shape[-1])))
        self.windows.append(named.get("sliding_window") if attention_mask is None else _window_of(attention_mask, kind))
        heads = value.repeat_interleave(query.shape[1] // value.shape[1], dim=1)
        return heads.transpose(1, 2).contiguous(), None

    def _attend(
        self,
        module: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        scaling: float | None = None,
        softcap: float | None = None,
        s_aux: torch.Tensor | None = None,
        **_: Any,
    ) -> tuple[torch.Tensor, None]:
        """Transformers' attention function: [1, heads, tokens, dim] each → [1, tokens, heads, dim], no weights."""
        index, self._calls = self._calls, self._calls + 1
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        options = self._options.setdefault(index, AttentionOptions(scale, self.windows[index], softcap, s_aux))
        cache, prepared = self._caches[index]
        shape = self.attention.shape
        query = _fitted(query, shape.num_heads, shape.head_dim)
        keys, values = (_fitted(tensor, shape.num_kv_heads, shape.head_dim) for tensor in (key, value))
        output = self.attention.forward(query, keys, values, cache, prepared, options)
        return output[None, ..., : value.shape[-1]], None


def _mark(mask_function: Callable[..., torch.Tensor], local_size: int | None = None, **_: Any) -> torch.Tensor:
    """A mask of nothing, which says what a mask of the model's would hide.

    Args:
        mask_function: whether a token at one position (the third argument) sees that at another one.
        local_size: of windows, or of chunks.

    Raises:
        StartupError: it is neither causal nor a sliding window.
    """

    def sees(here: int, there: int) -> bool:
        return bool(mask_function(0, 0, torch.tensor(here), torch.tensor(there)))

    if sees(0, 1) or (local_size is not None and not sees(local_size, 1)):
        raise StartupError("The model cannot use paged attention: its masks are neither causal nor of sliding windows.")
    return torch.zeros((1, 1, 2, 2)).as_subclass(_Mark).of(local_size)


class _Mark(torch.Tensor):
    """A mask that knows its window. Of what a model makes of it, only parts do."""

    window: int | None

    def __getitem__(self, index: Any) -> _Mark:
        part = super().__getitem__(index).as_subclass(_Mark)
        return part.of(self.window) if hasattr(self, "window") else part

    def of(self, window: int | None) -> _Mark:
        self.window = window
        return self


def _window_of(mask: torch.Tensor, kind: str) -> int | None:
    """
    Raises:
        StartupError: the model made the mask by itself.
    """
    if not isinstance(mask, _Mark) or not hasattr(mask, "window"):
        raise StartupError(f"{kind} cannot use paged attention: it wants a mask of its own.")
    return mask.window


def _fitted(tensor: torch.Tensor, heads: int, dim: int) -> torch.Tensor:
    """[1, fewer heads, tokens, shorter dim] → [tokens, heads, dim]."""
    filled = F.pad(tensor[0], (0, dim - tensor.shape[-1]))
    return filled.repeat_interleave(heads // len(filled), dim=0).transpose(0, 1).contiguous()
