"""The stages, in the order in which they change the logits."""

from __future__ import annotations

from engine_svc.sampling.stages.allowed_tokens import AllowedTokens
from engine_svc.sampling.stages.bad_words import BadWords
from engine_svc.sampling.stages.base import LogitsStage
from engine_svc.sampling.stages.custom_processors import CustomProcessors
from engine_svc.sampling.stages.grammar import GrammarMask
from engine_svc.sampling.stages.logit_bias import LogitBias
from engine_svc.sampling.stages.minimum_tokens import MinimumTokens
from engine_svc.sampling.stages.penalties import Penalties
from engine_svc.sampling.stages.thinking_budget import ThinkingBudget

# Stages that forbid tokens follow those that change likelihoods; one that forces tokens comes last.
STAGES: tuple[type[LogitsStage], ...] = (
    LogitBias,
    Penalties,
    CustomProcessors,
    MinimumTokens,
    AllowedTokens,
    GrammarMask,
    BadWords,
    ThinkingBudget,
)
