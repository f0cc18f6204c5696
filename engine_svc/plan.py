"""All that crosses between the control side (scheduler, KV cache) and the compute side (runner) of a worker.

One `StepPlan` goes down per step and one `StepResult` comes back. Both are plain data (msgspec structs of ints, floats
and lists), so that they travel unchanged to the rank processes of the `mp` executor as msgpack.

There is no prefill or decode phase here: every scheduled sequence has `num_computed_tokens` behind it and computes
`num_new_tokens` more. It samples exactly when that reaches the last token known: a token, and one more for each drafted
token behind it that the model is to verify. What comes back is a run: the drafted tokens that were right, and the one
that the model puts behind them.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from quire.prompt_embeds import PromptEmbeds
from quire.sampling import SamplingParameters


class SamplingPlan(msgspec.Struct, frozen=True, array_like=True):
    """How the runner samples for one sequence: what the request wants, and what the engine adds to it."""

    parameters: SamplingParameters = SamplingParameters()
    seed: int = 0  # 64-bit key of the counter-based noise: the request's seed, or a drawn one, mixed with the choice
    suppress_token_ids: tuple[int, ...] = ()  # ids not sampled before min_tokens are generated
    num_prompt_logprobs: int | None = None  # as the request's, where this sequence is the one that tells them
    follows_grammar: bool = False  # which tokens it may sample comes step by step, as TokenMasks


class NewSequence(msgspec.Struct, frozen=True, array_like=True):
    """A sequence that takes a slot of the runner: new, resumed, or back after a preemption."""

    slot: int  # row of the runner's persistent buffers; 0 <= slot < max_num_seqs
    token_ids: list[int]  # all tokens known: prompt, and output so far after a preemption or on another worker
    num_prompt_tokens: int
    num_computed_tokens: int  # found in the prefix cache
    block_ids: list[list[int]]  # the block tables so far, of each group of layers
    sampling: SamplingPlan
    # Of a prompt that came as embeddings: the rows at the positions of the prompt that are not computed, whose token
    # ids only hold their places.
    prompt_embeds: PromptEmbeds | None = None
    adapter_slot: int = 0  # of the device, whose adapter it runs with: see AdapterChanges; 0 for none


class ScheduledSequence(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What one sequence computes in this step. There are many, and none can be part of a cycle."""

    slot: int
    num_computed_tokens: int  # before the step
    num_new_tokens: int  # drafted ones among them
    # A token is sampled at each of the last so many of its new positions: 1 + drafted tokens where the last token known
    # is among the new ones, else 0.
    num_sampled_positions: int
    # Appended to its block tables before the step; empty where there are none, as for a NewSequence of this step.
    new_block_ids: list[list[int]]
    draft_token_ids: tuple[int, ...] = ()  # behind the tokens known: guessed, to be verified
    # Tokens that the runner is to guess behind the run that it samples, for the next step, as far as its block tables
    # have room for them behind the run. 0 where the control side guesses, or nobody. With one that samples nothing yet,
    # the draft model is to keep up.
    num_wanted_drafts: int = 0


class BlockTransfer(msgspec.Struct, frozen=True, array_like=True):
    """Blocks that move between the device and wherever a connector keeps them."""

    block_ids: list[int]  # on the device
    places: Sequence[int | bytes]  # of each: where it is kept, as the connector names it; a number in memory, a hash
    key: int = 0  # by which its end is reported; 0 where the step waits for it


class Transfers(msgspec.Struct, frozen=True, array_like=True):
    """What a connector's store does before a step computes, in this order: see block_stores/base.py."""

    saves: list[BlockTransfer] = []
    loads: list[BlockTransfer] = []
    cancelled: list[int] = []  # keys of transfers that nobody waits for


NO_TRANSFERS = Transfers()


class EndedTransfer(msgspec.Struct, frozen=True, array_like=True):
    """A transfer whose blocks the store will not touch again."""

    key: int
    num_blocks: int  # how many of its first ones have been moved; fewer than all where it failed or was cancelled


class AdapterPlacement(msgspec.Struct, frozen=True, array_like=True):
    """An adapter that a slot of the device holds from this step on, in place of what it held."""

    slot: int  # 1 to --max-loras
    key: int


class AdapterChanges(msgspec.Struct, frozen=True, array_like=True):
    """What becomes of low-rank adapters before a step computes: dropped, placed, then begun to be read.

    Each is known by a key that is never used twice. It is read from its folder into host memory beside the steps, which
    StepResult.read_adapters reports; from then on it may be placed in a slot, any number of times, until it is dropped.
    """

    dropped: list[int] = []  # keys; slots that hold them are not used before something else is placed there
    placed: list[AdapterPlacement] = []
    read: dict[int, str] = {}  # key -> folder, checked by the control side


NO_ADAPTER_CHANGES = AdapterChanges()


class StepPlan(msgspec.Struct, frozen=True, array_like=True):
    """One engine step. One that schedules nobody only lets a connector's transfers get on."""

    step: int
    new_sequences: list[NewSequence]
    scheduled: list[ScheduledSequence]  # in batch order; a slot appears once at most
    transfers: Transfers = NO_TRANSFERS  # which begin before anything is computed
    awaits_masks: bool = False  # TokenMasks come behind the plan: only sampling waits for them
    adapters: AdapterChanges = NO_ADAPTER_CHANGES

    @property
    def num_tokens(self) -> int:
        """Tokens computed by this step."""
        return sum(sequence.num_new_tokens for sequence in self.scheduled)

    @property
    def has_drafts(self) -> bool:
        """Whether any sequence samples more than one token."""
        return any(sequence.num_sampled_positions > 1 for sequence in self.scheduled)


class TokenMasks(msgspec.Struct, frozen=True, array_like=True):
    """Which tokens the sequences of a step that follow a grammar may sample.

    They come behind the plan, for what may follow depends on tokens that another step may still be sampling while this
    one's forward pass begins. A sequence that has ended meanwhile has none: what it samples means nothing.
    """

    slots: list[int] = []  # each once for every position that its sequence samples, in order
    # For each of them ceil(vocabulary / 32) words of 32 bits, little-endian: bit i % 32 of word i // 32 is token i.
    bits: bytes = b""


class PositionLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log-probabilities at one position: the token that stands there first, then the most likely ones."""

    token_ids: list[int]
    logprobs: list[float]
    rank: int  # of token_ids[0]; 1 is the most likely


class StageTimes(msgspec.Struct, frozen=True, array_like=True):
    """When a stage of a pipeline had a step, in seconds of the machine's monotonic clock."""

    began: float
    waited: float  # of the time between, how long it waited for other stages
    ended: float


OVERFLOW = "the model's values overflowed, or no token is left to sample"
"""Why a sequence failed whose logits say of no token how likely it is."""


class StepResult(msgspec.Struct, frozen=True, array_like=True):
    """What a step produced."""

    # One entry for each scheduled sequence that samples and has not failed, in batch order.
    sampled_slots: list[int]
    # The run of tokens that goes on where its known ones end: at least one, at most one for each sampled position.
    sampled_token_ids: list[list[int]]
    # slot -> log-probabilities of each token of its run; only for sequences that want them.
    logprobs: dict[int, list[PositionLogprobs]]
    # slot -> log-probabilities of the prompt tokens whose predecessor was computed in this step.
    prompt_logprobs: dict[int, list[PositionLogprobs]]
    # Milliseconds in the model's forward pass, and in the whole of the step with sampling; on all stages together.
    forward_milliseconds: float
    execute_milliseconds: float
    # slot -> why its sequence failed, in words for its caller; the other sequences of the step are well.
    failed_slots: dict[int, str] = {}
    ended_transfers: list[EndedTransfer] = []  # since the last step
    # slot -> tokens guessed behind its run, as many as were wanted or fewer.
    draft_token_ids: dict[int, list[int]] = {}
    # Why the draft model is not run any more, in the step in which it failed; the step itself is well.
    draft_failure: str = ""
    draft_milliseconds: float = 0.0  # of the step's, in the draft model
    read_adapters: dict[int, str] = {}  # key -> empty, or why it could not be read; since the last step, on all ranks
    is_dual_batch: bool = False  # it ran as two halves: see parallel/dual_batch.py
    stages: list[StageTimes] = []  # of a rank the stage that it is in, of all of them each; empty where there is one


class KvCacheSpec(msgspec.Struct, frozen=True, array_like=True):
    """What the control side must know of the model to manage its KV cache and check requests."""

    architecture: str
    dtype: str
    device: str
    vocab_size: int
    max_model_len: int  # of the model's configuration, or as the options cut it
    bytes_per_block: int  # over the layers of a group, and a draft model's, of one rank; 0 where no layer attends
    available_bytes: int  # for the KV cache and for states, on the rank with the least
    attention_backend: str
    block_size: int  # in tokens; the backend's own choice where the options leave it open
    max_num_batched_tokens: int  # token budget of a step; the device's own choice where the options leave it open
    windows: tuple[int | None, ...] = (None,)  # of the groups of layers: see layer_groups.py
    embedding_size: int = 0  # values of each of the model's input embeddings
    cpu_kernels: str = ""  # on a CPU: the level of the C++ ones, or torch
    batch_invariant: bool = False  # what is computed for a sequence depends on it alone
    state_bytes: int = 0  # what recurrent layers keep of all sequences that may run, on one rank
    # Those that take adapters, by their names in the checkpoint: (outputs, inputs) on all ranks together; of an
    # embedding, (size of a row, vocabulary). Empty where no adapters are served.
    adapter_modules: dict[str, tuple[int, int]] = {}
    draft_bytes_per_block: int = 0  # of bytes_per_block, those of a draft model's layers
    lockstep_ranks: int = 0  # data ranks that compute experts together; 0 of a model that has none to share
    num_stages: int = 1  # of the model's layers: see parallel/stages.py
