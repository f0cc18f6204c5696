"""What a request has to know of the model that it is for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from quire.sampling import SamplingParameters


@dataclass(frozen=True, slots=True)
class Adapter:
    """A low-rank adapter on a model."""

    name: str
    path: str  # its folder, on the workers
    revision: str  # names its weights
    base_model_name: str = ""  # that it was loaded with; empty for the model it is served on


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that workers serve, or an adapter on it."""

    served_model_names: tuple[str, ...]  # that it answers to; the first one is the main one
    model: str  # folder or hub name that its weights came from
    max_model_len: int  # tokens of prompt and output together
    vocab_size: int
    block_size: int  # tokens of a KV block
    max_logprobs: int  # most alternatives that a request may ask for
    # Of its generation config; max_tokens, if it is there, is also the most that a request may have.
    default_sampling: SamplingParameters
    eos_token_ids: tuple[int, ...] = ()
    prompt_embeds_size: int = 0  # values of each row of a prompt's embeddings; 0 where none are taken
    adapters: tuple[Adapter, ...] = ()
    adapter: Adapter | None = None  # that this is
    parent: str | None = None  # the model's main name, for an adapter

    @property
    def main_name(self) -> str:
        """The model's, for an adapter too."""
        return self.parent or self.served_model_names[0]

    @property
    def revision(self) -> str:
        """Of the adapter; empty for none."""
        return self.adapter.revision if self.adapter else ""

    def by_name(self) -> Iterator[tuple[str, ServedModel]]:
        """All that it answers to: its own names, and its adapters'."""
        for name in self.served_model_names:
            yield name, self
        for adapter in self.adapters:
            yield (
                adapter.name,
                replace(
                    self, served_model_names=(adapter.name,), model=adapter.path, adapters=(), adapter=adapter,
                    parent=adapter.base_model_name or self.main_name,
                ),
            )  # fmt: skip
