"""A pipeline stage of a model that runs the Transformers library's code, cut by the plan that comes with the model.

A plan lists the modules that hidden states go through in order. Modules of other stages lose their weights and pass on
their input. At the beginning of the stage, hidden states are replaced by what the previous stage has sent; at its end,
they are kept to be sent. Embeddings of another stage are NaN, so that any other use of them by layers is noticed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from engine_svc.parallel.stages import Stage
from quire.errors import StartupError

_Io = tuple[tuple[str, ...], tuple[str, ...]]
# Inputs and outputs of the modules in a plan.
_EMBEDDING: _Io = ("input_ids",), ("inputs_embeds",)
_BEFORE_LAYERS: tuple[_Io, ...] = (
    (("inputs_embeds",), ("inputs_embeds",)), (("inputs_embeds",), ("hidden_states",)),
)  # fmt: skip
_LAYERS: _Io = ("hidden_states", "attention_mask"), ("hidden_states",)
_BEHIND_LAYERS: tuple[_Io, ...] = ((("hidden_states",), ("hidden_states",)), (("hidden_states",), ("logits",)))


class StageCut:
    """Cuts a model down to one stage; one object for each model and rank.

    Attributes:
        stage: which layers the rank has; set once the model is cut.
        num_layers: number of layers of all stages.
        received: what the previous stage has sent for the next pass: [tokens, hidden_size].
        left: what the last pass has to send to the next stage, if there is one: [1, tokens, hidden_size].
    """

    stage: Stage
    num_layers: int

    def __init__(self, stage_of: Callable[[int], Stage]) -> None:
        """
        Args:
            stage_of: returns the rank's stage of a model with this many layers; may raise StartupError.
        """
        self._stage_of = stage_of
        self.received: torch.Tensor | None = None
        self.left: torch.Tensor | None = None

    def begin(self, model: Any) -> None:
        """Removes what belongs to other stages.

        Args:
            model: on the meta device.

        Raises:
            StartupError: the model has no plan, or an unsupported one; or it cannot be cut like this.
        """
        name = type(model).__name__
        if not model.config.base_model_pp_plan:
            raise StartupError(
                f"{name} runs with the Transformers library's code, which has no plan for dividing its layers into "
                "stages (base_model_pp_plan). Leave --pipeline-parallel-size out."
            )
        plan = {path: (tuple(io[0]), tuple(io[1])) for path, io in model.pp_plan.items()}
        modules: dict[str, Any] = dict(model.named_modules())
        for path, io in plan.items():
            if path not in modules or io not in (_EMBEDDING, *_BEFORE_LAYERS, _LAYERS, *_BEHIND_LAYERS):
                raise StartupError(
                    f"{name}: in the Transformers library's plan for stages, {path} turns {', '.join(io[0])} into "
                    f"{', '.join(io[1])}, which is not supported. Leave --pipeline-parallel-size out."
                )
        stack = next(path for path, io in plan.items() if io == _LAYERS)
        layers = modules[stack]
        self.num_layers, self.stage = len(layers), self._stage_of(len(layers))
        elsewhere = [f"{stack}.{index}" for index in self._cut_layers(layers)] + self._cut_others(model, plan)
        # Their tensors in the checkpoint are not unexpected.
        model._keys_to_ignore_on_load_unexpected |= {rf"^{re.escape(path)}\." for path in elsewhere}

    def _cut_layers(self, layers: Sequence[torch.nn.Module]) -> list[int]:
        """Cuts layers; returns the indices of those on other stages."""
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
        """Cuts the modules before and after the layers; returns the paths of those on other stages."""
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
        # Nothing has been received during the trial run.
        return torch.zeros_like(hidden_states) if self.received is None else self.received[None]

    def _leave(self, hidden_states: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        self.left = hidden_states
        return hidden_states


class _NoEmbedding:
    """Stands for the embeddings of another stage: returns NaN."""

    def __init__(self, size: int, dtype: torch.dtype) -> None:
        self._size, self._dtype = size, dtype

    def __call__(self, token_ids: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        return torch.full((*token_ids.shape, self._size), torch.nan, dtype=self._dtype, device=token_ids.device)


def _hand_on(hidden_states: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return hidden_states


def _put_elsewhere(module: Any, forward: Callable[..., torch.Tensor], keeps_weights: bool = False) -> None:
    """Replaces a module's forward and drops its weights; plain attributes, which a model may read, stay."""
    if not keeps_weights:
        for held in (module._modules, module._parameters, module._buffers, module._non_persistent_buffers_set):
            held.clear()
        module._is_hf_initialized = True  # there is nothing to initialize
    module.forward = forward
    module.is_of_another_stage = True


def is_elsewhere(module: torch.nn.Module) -> bool:
    """Whether a module belongs to another stage."""
    return hasattr(module, "is_of_another_stage")
