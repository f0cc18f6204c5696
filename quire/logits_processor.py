"""Base class for operators' own logits processors. See docs/logits_processors.md."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from quire.registry import load_qualified


class LogitsProcessor(ABC):
    """Changes the logits of one sequence before its next token is sampled.

    An instance belongs to one sequence and may be recreated at any time (after a preemption, on another worker), and
    `apply` may be called twice for a step. Its results must therefore depend only on its constructor arguments and on
    the tokens passed in, never on earlier calls.

    An exception that it raises fails only its own sequence, with an error that names the exception.
    """

    @classmethod
    def for_request(cls, xargs: Mapping[str, Any]) -> LogitsProcessor | None:
        """For a class given by `--logits-processors`: returns a sequence's processor, or None if there is nothing to
        do.

        Args:
            xargs: the request's `vllm_xargs`; empty if it has none.
        """
        return cls()

    @abstractmethod
    def apply(self, token_ids: Any, num_prompt_tokens: int, logits: Any) -> Any:
        """Returns the logits to continue with.

        Args:
            token_ids: torch.Tensor int64 [tokens] on the model's device: all known tokens, the prompt's first (none for
                a prompt of embeddings); must not be written to. Reading them on the host makes a GPU wait.
            num_prompt_tokens: number of prompt tokens among them; larger than their number while a prompt is being
                scored.
            logits: torch.Tensor float32 [vocabulary] on the same device, which may be changed in place and returned.
        """


def load_class(name: str) -> type[LogitsProcessor]:
    """Loads a class by its fully qualified name, `package.module.Class` or `package.module:Class`.

    Raises:
        ValueError: there is none, or it is not a LogitsProcessor; the message says why.
    """
    found = load_qualified(name)
    if not isinstance(found, type) or not issubclass(found, LogitsProcessor):
        raise ValueError(f"{name} is not a class derived from {__name__}.LogitsProcessor")
    if inspect.isabstract(found):
        raise ValueError(f"{name} has no method apply")
    return found
