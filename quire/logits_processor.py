"""What operators derive their own logits processors from. See docs/logits_processors.md."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from quire.registry import load_qualified


class LogitsProcessor(ABC):
    """Changes the logits of one sequence before its next token is drawn.

    An instance belongs to one sequence and may be made anew at any time (after a preemption, on another worker), and
    `apply` may be called twice for a step. So what it does must follow from what it was made with and from the tokens
    that it is given, and from nothing that it remembers of earlier calls.

    What it raises fails its own sequence, with an error that names the exception, and no other.
    """

    @classmethod
    def for_request(cls, xargs: Mapping[str, Any]) -> LogitsProcessor | None:
        """For a class of `--logits-processors`: the processor of a sequence, or None where it has nothing to do.

        Args:
            xargs: the request's `vllm_xargs`; empty where it has none.
        """
        return cls()

    @abstractmethod
    def apply(self, token_ids: Any, num_prompt_tokens: int, logits: Any) -> Any:
        """The logits to go on with.

        Args:
            token_ids: torch.Tensor int64 [tokens] on the model's device, all that are known, those of the prompt first
                (none of a prompt of embeddings); not to be written to. What is read of them on the host makes a GPU
                wait for it.
            num_prompt_tokens: how many of them are the prompt's; more than there are, where a prompt is scored.
            logits: torch.Tensor float32 [vocabulary] there too, which may be changed and returned.
        """


def load_class(name: str) -> type[LogitsProcessor]:
    """The class of a fully qualified name, `package.module.Class` or `package.module:Class`.

    Raises:
        ValueError: there is none, or it is no LogitsProcessor; says why.
    """
    found = load_qualified(name)
    if not isinstance(found, type) or not issubclass(found, LogitsProcessor):
        raise ValueError(f"{name} is no class derived from {__name__}.LogitsProcessor")
    if inspect.isabstract(found):
        raise ValueError(f"{name} has no method apply")
    return found
