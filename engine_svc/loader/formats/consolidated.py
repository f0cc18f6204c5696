"""`--load-format mistral`: consolidated safetensors with params.json, as Mistral publishes its own models.

Modules have other names there. The two values of a query or key head that are rotated together are neighbors, whereas
in Hugging Face's layout they are half a head apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from engine_svc.config_formats.base import read_object
from engine_svc.loader.formats.safetensors_files import Safetensors
from engine_svc.loader.formats.shards import shard_files
from quire.errors import StartupError
from quire.options.load import LoadOptions

if TYPE_CHECKING:
    import torch

    from engine_svc.layers.parameter import TensorSlice

_PARAMS = "params.json"
_LAYER = re.compile(r"layers\.(\d+)\.(.+)")
_TOP = {"tok_embeddings": "model.embed_tokens", "norm": "model.norm", "output": "lm_head"}
_MODULES = {
    "attention_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "attention.wq": "self_attn.q_proj", "attention.wk": "self_attn.k_proj", "attention.wv": "self_attn.v_proj",
    "attention.wo": "self_attn.o_proj", "feed_forward.w1": "mlp.gate_proj", "feed_forward.w2": "mlp.down_proj",
    "feed_forward.w3": "mlp.up_proj", "gate": "block_sparse_moe.gate",
}  # fmt: skip
_KINDS = {"qscale_weight": "weight_scale", "qscale_act": "input_scale"}


class Consolidated(Safetensors):
    """Converts names of tensors and the order of rows to Hugging Face's layout."""

    patterns: ClassVar[Sequence[str]] = ("consolidated*.safetensors", "tekken.json", "tokenizer.model*")
    index: ClassVar[str] = "consolidated.safetensors.index.json"

    def __init__(self, folder: Path, options: LoadOptions) -> None:
        """
        Raises:
            StartupError: there is no params.json, or it lacks the number of heads.
        """
        super().__init__(folder, options)
        try:
            params = read_object(folder / _PARAMS)
            heads = params["n_heads"]
            self._heads = {"self_attn.q_proj": heads, "self_attn.k_proj": params.get("n_kv_heads") or heads}
        except FileNotFoundError:
            raise StartupError(f"--load-format mistral: {folder} has no {_PARAMS}.") from None
        except KeyError as error:
            raise StartupError(f"{folder / _PARAMS} lacks {error}.") from error

    def files(self) -> Sequence[Path]:
        """See LoadFormat.files."""
        files = shard_files(self.folder, self.index) or self.found("consolidated*.safetensors")
        if not files:
            raise StartupError(f"{self.folder} has no consolidated*.safetensors weights.")
        return files

    def names(self) -> Mapping[str, Path]:
        """See TensorSource.names."""
        return {huggingface_name(name): file for name, file in super().names().items()}

    def tensors(self) -> Iterator[tuple[str, TensorSlice]]:
        """See TensorSource.tensors."""
        for name, source in super().tensors():
            found = huggingface_name(name)
            heads = next((count for module, count in self._heads.items() if f".{module}." in found), 0)
            is_scale = len(source.get_shape()) == 0 or found.endswith("_scale")
            yield found, _Reordered(source, heads) if heads and not is_scale else source


def huggingface_name(name: str) -> str:
    """The name in Hugging Face's layout; unknown names are not changed."""
    module, _, kind = name.rpartition(".")
    kind = _KINDS.get(kind, kind)
    if module in _TOP:
        return f"{_TOP[module]}.{kind}"
    if (layer := _LAYER.fullmatch(module)) is None:
        return name
    inner = layer[2].removeprefix("block_sparse_moe.")
    inner = f"block_sparse_moe.{inner}" if inner.startswith("experts.") else _MODULES.get(inner, inner)
    return f"model.layers.{layer[1]}.{inner}.{kind}"


@dataclass(frozen=True)
class _Reordered:
    """A TensorSlice with the rows of each head reordered: first the even ones, then the odd ones."""

    source: TensorSlice
    num_heads: int

    def get_shape(self) -> Sequence[int]:
        """See TensorSlice."""
        return self.source.get_shape()

    def __getitem__(self, index: Any) -> torch.Tensor:
        """See TensorSlice."""
        rows = self.source[...]
        size = rows.shape[0] // self.num_heads
        halves = rows.view(self.num_heads, size // 2, 2, *rows.shape[1:]).transpose(1, 2)
        return halves.reshape(rows.shape)[index]
