"""Messages between an executor and its rank processes."""

from __future__ import annotations

import msgspec

from engine_svc.plan import AdapterChanges, CacheSize, KvCacheSpec, StepPlan, StepResult, TokenMasks
from engine_svc.pooling_plan import PooledOutput, PooledSequence
from engine_svc.upkeep import Upkeep
from quire.options.engine import EngineOptions
from quire.options.log import LogOptions
from quire.options.model import ModelOptions


class LoadModel(msgspec.Struct, tag=True):
    """Load the model as rank `rank` of the group that meets at `rendezvous`, on visible GPU number `device`.

    `log` is for a rank that has no log of its own yet; ranks of other nodes have.

    With `pooled_tokens`, ids of the tokens whose logits are classes, it is loaded for pooling.

    With `in_turns` the rank sends two more answers, when the ranks have met and when its weights are read, and waits
    for Proceed after each.
    """

    model: ModelOptions
    options: EngineOptions
    rank: int
    device: int
    rendezvous: str
    log: LogOptions
    in_turns: bool = False
    pooled_tokens: list[int] | None = None


class Proceed(msgspec.Struct, tag=True):
    """Continue loading: see LoadModel."""


class Allocate(msgspec.Struct, tag=True):
    """Allocate the KV cache."""

    size: CacheSize


class Step(msgspec.Struct, tag=True):
    """Run one step."""

    plan: StepPlan


class Pool(msgspec.Struct, tag=True):
    """Run one pooling step, see PoolingPlan."""

    step: int
    sequences: list[PooledSequence]
    adapters: AdapterChanges


class Masks(msgspec.Struct, tag=True):
    """Token masks for the step that awaits them. Has no answer of its own."""

    masks: TokenMasks


class Keep(msgspec.Struct, tag=True):
    """Run an upkeep command, which is not a step."""

    command: Upkeep


class Probe(msgspec.Struct, tag=True):
    """Answer that the rank is alive; sent while there is no other command."""


Command = LoadModel | Proceed | Allocate | Step | Pool | Masks | Keep | Probe


class Loaded(msgspec.Struct, tag=True):
    """Answer to LoadModel."""

    spec: KvCacheSpec


class Done(msgspec.Struct, tag=True):
    """Answer to Allocate and Probe, and to the first parts of LoadModel with `in_turns`."""


class Stepped(msgspec.Struct, tag=True):
    """Answer to Step."""

    result: StepResult


class Pooled(msgspec.Struct, tag=True):
    """Answer to Pool, see PoolingResult. Only the first rank's has outputs."""

    outputs: list[PooledOutput | str]
    forward_milliseconds: float
    execute_milliseconds: float
    encoded_media: int
    read_adapters: dict[int, str]


class Kept(msgspec.Struct, tag=True):
    """Answer to Keep."""

    lines: list[str]


class Failed(msgspec.Struct, tag=True):
    """The command failed; with `startup`, the message is meant for the user."""

    message: str
    startup: bool


Answer = Loaded | Done | Stepped | Pooled | Kept | Failed
