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

from engine_svc.config_formats.base import converting, read_object
from engine_svc.config_formats.mistral_media import is_live, with_media
from engine_svc.loader.formats.consolidated_media import module_of_encoder
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
    "ada_rms_norm_t_cond.0": "ada_rms_norm.linear1", "ada_rms_norm_t_cond.2": "ada_rms_norm.linear2",
    "attention.wo": "self_attn.o_proj", "feed_forward.w1": "mlp.gate_proj", "feed_forward.w2": "mlp.down_proj",
    "feed_forward.w3": "mlp.up_proj", "gate": "block_sparse_moe.gate",
    "attention.wq_a": "self_attn.q_a_proj", "attention.q_a_norm": "self_attn.q_a_layernorm",
    "attention.wq_b": "self_attn.q_b_proj", "attention.wkv_a_with_mqa": "self_attn.kv_a_proj_with_mqa",
    "attention.kv_a_norm": "self_attn.kv_a_layernorm", "attention.wkv_b": "self_attn.kv_b_proj",
    "shared_experts.w1": "mlp.shared_experts.gate_proj", "shared_experts.w2": "mlp.shared_experts.down_proj",
    "shared_experts.w3": "mlp.shared_experts.up_proj",
}  # fmt: skip
# Positions of an audio encoder, which are always the same: the files leave them out.
_POSITIONS = "model.audio_tower.embed_positions.weight"
_KINDS = {"qscale_weight": "weight_scale", "qscale_act": "input_scale"}


class Consolidated(Safetensors):
    """Converts names of tensors and the order of rows to Hugging Face's layout."""

    patterns: ClassVar[Sequence[str]] = ("consolidated*.safetensors", "tekken.json", "tokenizer.model*")
    index: ClassVar[str] = "consolidated.safetensors.index.json"

    def __init__(self, folder: Path, options: LoadOptions) -> None:
        """
        Raises:
            StartupError: there is no params.json, or it lacks a number of heads.
        """
        super().__init__(folder, options)
        try:
            params = read_object(folder / _PARAMS)
        except FileNotFoundError:
            raise StartupError(f"--load-format mistral: {folder} has no {_PARAMS}.") from None
        with converting(str(folder / _PARAMS)):
            heads, media = params["n_heads"], with_media(params, {})
        # Heads of the modules whose rows are reordered, by the beginning of their names.
        self._heads = {"model.layers.": {"q_proj": heads, "k_proj": params.get("n_kv_heads") or heads}}
        if vision := media.get("vision_config"):
            self._heads["model.vision_tower."] = dict.fromkeys(("q_proj", "k_proj"), vision["num_attention_heads"])
        self._is_live = is_live(media)
        self._positions: Mapping[str, Any] | None = None if self._is_live else media.get("audio_config")
        if self._is_live:
            count = media["audio_config"]["num_attention_heads"]
            self._heads["model.audio_tower."] = dict.fromkeys(("q_proj", "k_proj"), count)

    def files(self) -> Sequence[Path]:
        """See LoadFormat.files."""
        files = shard_files(self.folder, self.index) or self.found("consolidated*.safetensors")
        if not files:
            raise StartupError(f"{self.folder} has no consolidated*.safetensors weights.")
        return files

    def names(self) -> Mapping[str, Path]:
        """See TensorSource.names."""
        return {self._named(name): file for name, file in super().names().items()}

    def tensors(self) -> Iterator[tuple[str, TensorSlice]]:
        """See TensorSource.tensors."""
        for name, source in super().tensors():
            found = self._named(name)
            own = next((own for start, own in self._heads.items() if found.startswith(start)), {})
            heads = own.get(found.split(".")[-2], 0)
            # Not scales of whole matrices: they have no rows of heads.
            has_rows = heads and source.get_shape() and source.get_shape()[0] % (2 * heads) == 0
            yield found, _Reordered(source, heads) if has_rows else source
        if self._positions:
            from transformers.models.whisper.modeling_whisper import sinusoids

            waves = sinusoids(self._positions["max_source_positions"], self._positions["hidden_size"])
            yield _POSITIONS, _Given(waves)

    def _named(self, name: str) -> str:
        return huggingface_name(name, is_live=self._is_live)


def huggingface_name(name: str, *, is_live: bool = False) -> str:
    """The name in Hugging Face's layout; unknown names are not changed.

    Args:
        is_live: of Voxtral Realtime.
    """
    module, _, kind = name.rpartition(".")
    found = huggingface_module(module, is_live=is_live)
    return name if found == module else f"{found}.{_KINDS.get(kind, kind)}"


def huggingface_module(module: str, *, is_live: bool = False) -> str:
    """See `huggingface_name`, of a module."""
    if module in _TOP:
        return _TOP[module]
    if encoders := module_of_encoder(module, is_live=is_live):
        return f"model.{encoders}"
    if (layer := _LAYER.fullmatch(module)) is None:
        return module
    inner = layer[2].removeprefix("block_sparse_moe.")
    inner = f"block_sparse_moe.{inner}" if inner.startswith("experts.") else _MODULES.get(inner, inner)
    return f"model.layers.{layer[1]}.{inner}"


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


@dataclass(frozen=True)
class _Given:
    """A TensorSlice that is in no file."""

    tensor: torch.Tensor

    def get_shape(self) -> Sequence[int]:
        """See TensorSlice."""
        return self.tensor.shape

    def __getitem__(self, index: Any) -> torch.Tensor:
        """See TensorSlice."""
        found: torch.Tensor = self.tensor[index]
        return found
