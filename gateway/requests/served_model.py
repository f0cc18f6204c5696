"""What a request has to know of the model that it is for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from quire.runners import GENERATE
from quire.sampling import SamplingParameters


@dataclass(frozen=True, slots=True)
class Adapter:
    """A low-rank adapter on a model."""

    name: str
    path: str  # its folder, on the workers
    revision: str  # names its weights
    base_model_name: str = ""  # that it was loaded with; empty for the model it is served on


@dataclass(frozen=True, slots=True)
class PoolingModel:
    """What a model that is served for pooling makes of its inputs."""

    tasks: tuple[str, ...]  # the first is what a request gets that does not say
    embedding_size: int = 0  # values
    token_embedding_size: int = 0
    is_matryoshka: bool = False  # a request may ask for the first values alone
    matryoshka_dimensions: tuple[int, ...] = ()  # and for how many; any number where none are listed
    num_labels: int = 0
    label_names: tuple[str, ...] = ()
    is_cross_encoder: bool = False  # reads both texts of a pair together
    is_late_interaction: bool = False  # texts are compared token by token
    has_token_types: bool = False
    max_inputs: int = 1  # of a request to an engine
    prompts: Mapping[str, str] = field(default_factory=dict)  # that stand before a text, by what it is for
    default_prompt_name: str = ""


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
    base: str | None = None  # the model's main name, for an adapter
    runner: str = GENERATE  # what it is served for
    pooling: PoolingModel | None = None  # where it is served for pooling

    @property
    def main_name(self) -> str:
        """The model's, for an adapter too."""
        return self.base or self.served_model_names[0]

    @property
    def parent(self) -> str | None:
        """What is told to be an adapter's base: as whoever loaded it says, else the model."""
        return (self.adapter and self.adapter.base_model_name) or self.base

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
                    base=self.main_name,
                ),
            )  # fmt: skip
