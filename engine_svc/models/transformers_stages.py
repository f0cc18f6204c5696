"""A stage of a model that the Transformers library's code runs, cut by the plan that comes with the model.

A plan says which modules hidden states go through, one after the other. Those of other stages lose their weights and
hand on what they get: where the stage begins, what the stage before has sent; where it ends, it is kept to be sent.
What a stage gets of embeddings that are not there is no number, so that anything else that layers take from them shows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from engine_svc.parallel.stages import Stage
from quire.errors import StartupError

_Io = tuple[tuple[str, ...], tuple[str, ...]]
# What modules of a plan take and give.
_EMBEDDING: _Io = ("input_ids",), ("inputs_embeds",)
_BEFORE_LAYERS: tuple[_Io, ...] = (
    (("inputs_embeds",), ("inputs_embeds",)), (("inputs_embeds",), ("hidden_states",)),
)  # fmt: skip
_LAYERS: _Io = ("hidden_states", "attention_mask"), ("hidden_states",)
_BEHIND_LAYERS: tuple[_Io, ...] = ((("hidden_states",), ("hidden_states",)), (("hidden_states",), ("logits",)))


class StageCut:
    """One for each model and rank.

    Attributes:
        stage: which layers the rank has, once the model is cut.
        num_layers: of all stages.
        received: what the stage before has sent for the next pass: [tokens, hidden_size].
        left: what the last pass came to, where another stage follows: [1, tokens, hidden_size].
    """

    stage: Stage
    num_layers: int

    def __init__(self, stage_of: Callable[[int], Stage]) -> None:
        """
        Args:
            stage_of: the rank's stage of so many layers; may raise StartupError.
        """
        self._stage_of = stage_of
        self.received: torch.Tensor | None = None
        self.left: torch.Tensor | None = None

    def begin(self, model: Any) -> None:
        """Leaves out what other stages have.

        Args:
            model: on no device.

        Raises:
            StartupError: the model has no plan, or one that we do not know; or it cannot be cut so.
        """
        name = type(model).__name__
        if not model.config.base_model_pp_plan:
            raise StartupError(
                f"{name} runs by the Transformers library's code, which has no plan by which stages share its layers "
                "(base_model_pp_plan). Leave --pipeline-parallel-size out."
            )
        plan = {path: (tuple(io[0]), tuple(io[1])) for path, io in model.pp_plan.items()}
        modules: dict[str, Any] = dict(model.named_modules())
        for path, io in plan.items():
            if path not in modules or io not in (_EMBEDDING, *_BEFORE_LAYERS, _LAYERS, *_BEHIND_LAYERS):
                raise StartupError(
                    f"{name}: the Transformers library's plan for stages says of {path} that it makes "
                    f"{', '.join(io[1])} of {', '.join(io[0])}, which is not supported. Leave --pipeline-parallel-size "
                    "out."
                )
        stack = next(path for path, io in plan.items() if io == _LAYERS)
        layers = modules[stack]
        self.num_layers, self.stage = len(layers), self._stage_of(len(layers))
        elsewhere = [f"{stack}.{index}" for index in self._cut_layers(layers)] + self._cut_others(model, plan)
        # What there is of them in the checkpoint is no surprise.
        model._keys_to_ignore_on_load_unexpected |= {rf"^{re.escape(path)}\." for path in elsewhere}

    def _cut_layers(self, layers: Sequence[torch.nn.Module]) -> list[int]:
        """Returns which are elsewhere."""
        own = self.stage.layers
        others = [index for index in range(len(layers)) if index not in own]
        for index in others:
            _put_elsewhere(layers[index], _hand_on)
        if not self.stage.is_first:
            layers[own.start - 1].forward = self._enter
        if not self.stage.is_last:
            layers[own.stop].forward = self._leave
        return others

    def _cut_others(self, model: Any, plan: Mapping[str, _Io]) -> list[str]:
        """Returns what is elsewhere."""
        elsewhere = []
        stage, is_tied = self.stage, bool(model.all_tied_weights_keys)
        size = model.get_input_embeddings().weight.shape[-1]
        for path, io in plan.items():
            module = model.get_submodule(path)
            if io == _EMBEDDING and not stage.is_first:
                _put_elsewhere(module, _NoEmbedding(size, model.dtype), keeps_weights=is_tied and stage.is_last)
            elif not (stage.is_last if io in _BEHIND_LAYERS else stage.is_first) and io not in (_EMBEDDING, _LAYERS):
                _put_elsewhere(module, _hand_on)
            else:
                continue
            elsewhere.append(path)
        if not stage.is_last:
            model.all_tied_weights_keys = {}
        return elsewhere

    def _enter(self, hidden_states: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        # While it is tried out nothing has been received.
        return torch.zeros_like(hidden_states) if self.received is None else self.received[None]

    def _leave(self, hidden_states: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        self.left = hidden_states
        return hidden_states


class _NoEmbedding:
    """Embeddings of another stage."""

    def __init__(self, size: int, dtype: torch.dtype) -> None:
        self._size, self._dtype = size, dtype

    def __call__(self, token_ids: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        return torch.full((*token_ids.shape, self._size), torch.nan, dtype=self._dtype, device=token_ids.device)


def _hand_on(hidden_states: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return hidden_states


def _put_elsewhere(module: Any, forward: Callable[..., torch.Tensor], keeps_weights: bool = False) -> None:
    """Has a module do this in place of what it does; what a model asks of its plain attributes stays."""
    if not keeps_weights:
        for held in (module._modules, module._parameters, module._buffers, module._non_persistent_buffers_set):
            held.clear()
        module._is_hf_initialized = True  # there is nothing to
    module.forward = forward
    module.is_of_another_stage = True


def is_elsewhere(module: torch.nn.Module) -> bool:
    """Whether a module is another stage's."""
    return hasattr(module, "is_of_another_stage")
