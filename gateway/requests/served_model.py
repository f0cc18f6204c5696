"""What requests need to know about the model they use."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from gateway.answers.routed_experts import RoutedExpertsForm
from quire.media import MediaKind
from quire.runners import GENERATE
from quire.sampling import SamplingParameters


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter on a model."""

    name: str
    path: str  # its folder, on the workers
    revision: str  # identifies its weights
    base_model_name: str = ""  # as given when loading; empty means the model it is served on
    is_default: bool = False  # for conversations with media of the kind that is its name


@dataclass(frozen=True, slots=True)
class PoolingModel:
    """Capabilities of a model served for pooling."""

    tasks: tuple[str, ...]  # the first is the default
    embedding_size: int = 0  # number of values
    token_embedding_size: int = 0
    is_matryoshka: bool = False  # a request may truncate embeddings
    matryoshka_dimensions: tuple[int, ...] = ()  # allowed sizes; empty means any
    num_labels: int = 0
    label_names: tuple[str, ...] = ()
    is_cross_encoder: bool = False  # reads both texts of a pair together
    is_late_interaction: bool = False  # texts are compared token by token
    has_token_types: bool = False
    max_inputs: int = 1  # per request to an engine
    prompts: Mapping[str, str] = field(default_factory=dict)  # prompt name → text to prepend
    default_prompt_name: str = ""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model served by workers, or an adapter on it."""

    served_model_names: tuple[str, ...]  # the first one is the main name
    model: str  # folder or hub name of its weights
    max_model_len: int  # tokens of prompt and output together
    vocab_size: int
    block_size: int  # tokens of a KV block
    max_logprobs: int  # maximum alternatives that a request may ask for
    # From its generation config; max_tokens, if set, is also the maximum for requests.
    default_sampling: SamplingParameters
    eos_token_ids: tuple[int, ...] = ()
    prompt_embeds_size: int = 0  # values per row of prompt embeddings; 0 if not accepted
    accepts_images: bool = False
    accepts_videos: bool = False
    accepts_audio: bool = False
    architecture: str = ""  # such as "Qwen2ForCausalLM"
    adapters: tuple[Adapter, ...] = ()
    adapter: Adapter | None = None  # set if this is an adapter
    base: str | None = None  # the model's main name, for an adapter
    runner: str = GENERATE  # the kind of requests it serves
    pooling: PoolingModel | None = None  # set if served for pooling
    routed_experts: RoutedExpertsForm | None = None  # set if answers have them

    @property
    def main_name(self) -> str:
        """The model's main name, for an adapter too."""
        return self.base or self.served_model_names[0]

    @property
    def parent(self) -> str | None:
        """Name shown as an adapter's base: as given when loading, otherwise the model's main name."""
        return (self.adapter and self.adapter.base_model_name) or self.base

    @property
    def media(self) -> tuple[MediaKind, ...]:
        """What it reads besides text."""
        accepted = {
            MediaKind.IMAGE: self.accepts_images, MediaKind.VIDEO: self.accepts_videos,
            MediaKind.AUDIO: self.accepts_audio,
        }  # fmt: skip
        return tuple(kind for kind in MediaKind if accepted[kind])

    @property
    def revision(self) -> str:
        """Revision of the adapter; empty for the model itself."""
        return self.adapter.revision if self.adapter else ""

    def answering_name(self, asked: str | None) -> str:
        """The name reported in answers. An alias may stand for several models, so it is kept; the model's own names all
        become its first."""
        names = self.served_model_names
        return asked if asked and asked not in names else names[0]

    def default_adapter(self, kinds: Callable[[], Collection[MediaKind]]) -> str | None:
        """Name of the adapter for a conversation with media; None if there is none, or one for each of several kinds.

        Args:
            kinds: returns what the conversation contains. Called only if there are such adapters.
        """
        names = {adapter.name for adapter in self.adapters if adapter.is_default}
        found = names.intersection(kinds()) if names else set()
        return found.pop() if len(found) == 1 else None

    def by_name(self) -> Iterator[tuple[str, ServedModel]]:
        """Yields all names with their models: its own names, and its adapters'."""
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
