"""Implements Transformers' attention interface, the function its models call to attend, over the paged KV cache."""

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

# Names of attention implementations. With the first one, models make no masks; with the second one, they request masks,
# which show what these would hide.
NAME, WATCHED = "quire-paged", "quire-watched"
# Named arguments that layers pass to an attention function: those that ours follows, and those it can ignore.
_OBEYED = {"scaling", "sliding_window", "softcap", "s_aux"}
_SILENT = {"cache_position", "dropout", "is_causal", "output_attentions", "position_ids", "use_cache"}


@dataclass(frozen=True)
class Heads:
    """The heads that an attention function is called with."""

    num_heads: int
    num_kv_heads: int
    head_dim: int  # the larger one of keys and values


class PagedInterface:
    """Attention for a model's layers, identified by the order of their calls, which is the same in every forward pass.

    Each call has its own cache, because a layer may attend twice or be run repeatedly. If calls differ in their heads,
    the cache has room for the most and the largest ones: heads of keys and values are repeated and padded with zeros.
    """

    attention: AttentionBackend

    def __init__(self) -> None:
        self._heads: list[Heads] = []
        self.windows: list[int | None] = []  # by call
        self._options: dict[int, AttentionOptions] = {}  # by call
        self._caches: Sequence[LayerCache] = ()
        self._calls = 0

    def watch(self) -> None:
        """Makes the next forward pass, under the name WATCHED, record its calls without attending to anything."""
        ALL_ATTENTION_FUNCTIONS.register(WATCHED, self._probe)
        ALL_MASK_ATTENTION_FUNCTIONS.register(WATCHED, _mark)

    def begin(self, caches: Sequence[LayerCache]) -> None:
        """Makes the next forward pass attend to these caches, one for each call."""
        ALL_ATTENTION_FUNCTIONS.register(NAME, self._attend)
        self._caches, self._calls = caches, 0

    def heads(self) -> Heads:
        """The heads of the cache.

        Raises:
            StartupError: no layer has called attention, or the calls' heads do not fit one cache layout.
        """
        if not self._heads:
            raise StartupError("The model's layers do not call Transformers' attention interface.")
        most = Heads(*(max(getattr(each, name) for each in self._heads) for name in Heads.__dataclass_fields__))
        for each in self._heads:
            if each.num_heads != most.num_heads or most.num_kv_heads % each.num_kv_heads:
                raise StartupError(
                    f"The model's layers differ in their attention heads (some have {each.num_heads} of queries and "
                    f"{each.num_kv_heads} of keys, others {most.num_heads} and {most.num_kv_heads}), which do not "
                    "fit one cache layout."
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
        """Records the call.

        Raises:
            StartupError: the layer wants something that paged attention does not support.
        """
        kind = type(module).__name__
        unknown = sorted(name for name, given in named.items() if given is not None and name not in _OBEYED | _SILENT)
        if unknown:
            raise StartupError(f"{kind} cannot use paged attention: it needs {', '.join(unknown)}.")
        causal = named.get("is_causal")
        if (getattr(module, "is_causal", True) if causal is None else causal) is False:
            raise StartupError(f"{kind} cannot use paged attention: tokens attend to later ones.")
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
        """Transformers' attention function: [1, heads, tokens, dim] → [1, tokens, heads, dim], without weights."""
        index, self._calls = self._calls, self._calls + 1
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        options = self._options.setdefault(index, AttentionOptions(scale, self.windows[index], softcap, s_aux))
        own = self._caches[index]
        shape = self.attention.shape
        query = _fitted(query, shape.num_heads, shape.head_dim)
        keys, values = (_fitted(tensor, shape.num_kv_heads, shape.head_dim) for tensor in (key, value))
        output = self.attention.forward(query, keys, values, own.cache, own.prepared, options)
        return output[None, ..., : value.shape[-1]], None


def _mark(mask_function: Callable[..., torch.Tensor], local_size: int | None = None, **_: Any) -> torch.Tensor:
    """Makes a placeholder mask that only records what the model's mask would hide.

    Args:
        mask_function: whether a token at one position (the third argument) sees the token at another (the fourth).
        local_size: size of windows or chunks.

    Raises:
        StartupError: the mask is neither causal nor that of a sliding window.
    """

    def sees(here: int, there: int) -> bool:
        return bool(mask_function(0, 0, torch.tensor(here), torch.tensor(there)))

    if sees(0, 1) or (local_size is not None and not sees(local_size, 1)):
        raise StartupError("The model cannot use paged attention: its masks are neither causal nor sliding windows.")
    return torch.zeros((1, 1, 2, 2)).as_subclass(_Mark).of(local_size)


class _Mark(torch.Tensor):
    """A mask that carries its window. Only slices keep it, not other tensors that a model derives from the mask."""

    window: int | None

    def __getitem__(self, index: Any) -> _Mark:
        part = super().__getitem__(index).as_subclass(_Mark)
        return part.of(self.window) if hasattr(self, "window") else part

    def of(self, window: int | None) -> _Mark:
        self.window = window
        return self


def _window_of(mask: torch.Tensor, kind: str) -> int | None:
    """The window that a mask carries.

    Raises:
        StartupError: the model made the mask itself.
    """
    if not isinstance(mask, _Mark) or not hasattr(mask, "window"):
        raise StartupError(f"{kind} cannot use paged attention: it needs its own mask.")
    return mask.window


def _fitted(tensor: torch.Tensor, heads: int, dim: int) -> torch.Tensor:
    """Repeats and pads heads: [1, fewer heads, tokens, smaller dim] → [tokens, heads, dim]."""
    filled = F.pad(tensor[0], (0, dim - tensor.shape[-1]))
    return filled.repeat_interleave(heads // len(filled), dim=0).transpose(0, 1).contiguous()
