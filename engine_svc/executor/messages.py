"""What an executor and its rank processes say to each other."""

from __future__ import annotations

import msgspec

from engine_svc.plan import KvCacheSpec, StepPlan, StepResult, TokenMasks
from engine_svc.upkeep import Upkeep
from quire.options.engine import EngineOptions
from quire.options.log import LogOptions
from quire.options.model import ModelOptions


class LoadModel(msgspec.Struct, tag=True):
    """Load the model as rank `rank` of the group that meets at `rendezvous`, on the GPU `device` of those it sees.

    With `in_turns` it has two answers more, and waits for Proceed behind each: when the ranks have met, and when its
    weights are read.
    """

    model: ModelOptions
    options: EngineOptions
    rank: int
    device: int
    rendezvous: str
    log: LogOptions
    in_turns: bool = False


class Proceed(msgspec.Struct, tag=True):
    """Go on loading: see LoadModel."""


class Allocate(msgspec.Struct, tag=True):
    """Allocate the KV cache."""

    num_blocks: int
    num_host_blocks: int


class Step(msgspec.Struct, tag=True):
    """Run one step."""

    plan: StepPlan


class Masks(msgspec.Struct, tag=True):
    """Sample, in the step that awaits this. Has no answer of its own."""

    masks: TokenMasks


class Keep(msgspec.Struct, tag=True):
    """Do what is no step."""

    command: Upkeep


class Probe(msgspec.Struct, tag=True):
    """Say that you are there, while nothing else is asked."""


Command = LoadModel | Proceed | Allocate | Step | Masks | Keep | Probe


class Loaded(msgspec.Struct, tag=True):
    """Answer to LoadModel."""

    spec: KvCacheSpec


class Done(msgspec.Struct, tag=True):
    """Answer to Allocate and to Probe, and to parts of LoadModel."""


class Stepped(msgspec.Struct, tag=True):
    """Answer to Step."""

    result: StepResult


class Kept(msgspec.Struct, tag=True):
    """Answer to Keep."""

    lines: list[str]


class Failed(msgspec.Struct, tag=True):
    """The command failed; `startup` says that its text is for the user."""

    message: str
    startup: bool


Answer = Loaded | Done | Stepped | Kept | Failed
