"""How many tokens requests generate, learned from those that have finished."""

from __future__ import annotations

_USUAL_TOKENS = 128.0  # until requests have finished
_SHARE_OF_NEW = 0.02
_MOST_MODELS = 4096  # remembered; the one that finished a request longest ago goes first


class OutputLengths:
    """A moving average for each model: a classifier and a reasoning model may differ a thousandfold."""

    def __init__(self) -> None:
        self._tokens: dict[str, float] = {}  # ordered by the last change

    def __len__(self) -> int:
        return len(self._tokens)

    def expected(self, model: str) -> float:
        """The number of tokens that a sequence of the model will probably have."""
        return self._tokens.get(model, _USUAL_TOKENS)

    def finished(self, model: str, tokens: float) -> None:
        """Takes in a finished request; `tokens` is the mean of its sequences."""
        before = self._tokens.pop(model, _USUAL_TOKENS)
        self._tokens[model] = before + _SHARE_OF_NEW * (tokens - before)
        if len(self._tokens) > _MOST_MODELS:
            del self._tokens[next(iter(self._tokens))]
