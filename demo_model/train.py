"""Trains a model on the corpus: Muon for the matrices, AdamW for the rest, cosine to zero."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
import transformers

from demo_model.dataset import IGNORED, Encoder, batches

MAX_POSITIONS = 2048
_REPORT_STEPS = 50


@dataclass(frozen=True)
class Phase:
    """Steps with optimizers of their own, whose learning rate falls along a cosine to zero."""

    steps: int
    late_step: int  # after which the late half of the corpus comes
    peak: float = 1.0  # of the recipe's learning rates


@dataclass(frozen=True)
class Recipe:
    """The size of a model, and how it is trained."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    phases: tuple[Phase, ...]
    tokens_per_batch: int = 8192
    muon_learning_rate: float = 0.02
    adam_learning_rate: float = 3e-3
    warmup_steps: int = 100
    seed: int = 1


DEMO = Recipe(
    256, 768, 6, 4, 2, 64,
    (Phase(2400, late_step=1000), Phase(600, late_step=0, peak=0.4), Phase(300, late_step=150, peak=0.4)),
)  # fmt: skip
DRAFT = Recipe(128, 320, 3, 2, 1, 64, (Phase(1500, late_step=600),))


@dataclass(frozen=True)
class Point:
    """One point of the loss curve."""

    step: int
    tokens: int  # that the model read until then
    loss: float  # nats per learned token, averaged over the last steps
    seconds: float


def make_model(recipe: Recipe, tokenizer: transformers.PreTrainedTokenizerFast) -> transformers.Qwen3ForCausalLM:
    """A Qwen3 model with random weights."""
    torch.manual_seed(recipe.seed)
    config = transformers.Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=recipe.hidden_size,
        intermediate_size=recipe.intermediate_size,
        num_hidden_layers=recipe.num_layers,
        num_attention_heads=recipe.num_heads,
        num_key_value_heads=recipe.num_kv_heads,
        head_dim=recipe.head_dim,
        max_position_embeddings=MAX_POSITIONS,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return transformers.Qwen3ForCausalLM(config)


def train(
    model: transformers.Qwen3ForCausalLM,
    encoder: Encoder,
    recipe: Recipe,
    device: torch.device,
    report: Callable[[Point], None],
) -> None:
    """Trains in place; calls `report` every now and then.

    The result is the mean of what each phase ends with (Wortsman et al. 2022: better than the last of them).
    """
    model.to(device).train()
    start, tokens, steps = time.monotonic(), 0, 0
    total = torch.zeros((), device=device)
    ends: list[list[torch.Tensor]] = []
    for index, phase in enumerate(recipe.phases):
        optimizers = _optimizers(model, recipe)
        schedules = [torch.optim.lr_scheduler.LambdaLR(o, _schedule(phase, recipe.warmup_steps)) for o in optimizers]
        for step, (token_ids, labels) in enumerate(_batches(encoder, recipe, index), start=1):
            with torch.autocast(device.type, torch.bfloat16):
                loss = _loss(model, token_ids.to(device), labels.to(device))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for optimizer, schedule in zip(optimizers, schedules, strict=True):
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            tokens += token_ids.numel()
            total += loss.detach()
            if (steps + step) % _REPORT_STEPS == 0:
                report(Point(steps + step, tokens, total.item() / _REPORT_STEPS, time.monotonic() - start))
                total.zero_()
        steps += phase.steps
        ends.append([parameter.detach().clone() for parameter in model.parameters()])
    with torch.no_grad():
        for parameter, values in zip(model.parameters(), zip(*ends, strict=True), strict=True):
            parameter.copy_(torch.stack(values).mean(0))


def _batches(encoder: Encoder, recipe: Recipe, index: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Those of one phase: of the early half of the corpus, then of the late one."""
    phase, seed = recipe.phases[index], recipe.seed + 2 * index
    early = batches(encoder, seed, recipe.tokens_per_batch)
    late = batches(encoder, seed + 1, recipe.tokens_per_batch, late=True)
    yield from itertools.islice(early, phase.late_step)
    yield from itertools.islice(late, phase.steps - phase.late_step)


def _loss(model: transformers.Qwen3ForCausalLM, token_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean over the learned tokens; logits are computed for those only. Padding stands behind what is learned."""
    hidden = model.model(input_ids=token_ids[:, :-1], use_cache=False).last_hidden_state
    targets = labels[:, 1:]
    learned = targets != IGNORED
    logits = model.lm_head(hidden[learned])
    return F.cross_entropy(logits.float(), targets[learned])


def _optimizers(model: torch.nn.Module, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Muon (Jordan et al. 2024) for the layers' matrices; AdamW for embeddings and norms."""
    inside = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    rest = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    return [
        torch.optim.Muon(inside, lr=recipe.muon_learning_rate, weight_decay=0.01, momentum=0.95),
        torch.optim.AdamW(rest, lr=recipe.adam_learning_rate, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def _schedule(phase: Phase, warmup_steps: int) -> Callable[[int], float]:
    """Step → factor on the learning rates."""

    def factor(step: int) -> float:
        if step < warmup_steps:
            return phase.peak * (step + 1) / warmup_steps
        done = (step - warmup_steps) / max(1, phase.steps - warmup_steps)
        return phase.peak * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))

    return factor
