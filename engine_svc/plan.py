"""Messages between the control side (scheduler, KV cache) and the compute side (runner) of a worker.

One `StepPlan` goes down per step and one `StepResult` comes back. Both are plain data (msgspec structs of ints, floats
and lists), so that they can be sent unchanged, as msgpack, to the rank processes of the `mp` executor.

There is no prefill or decode phase here: every scheduled sequence has `num_computed_tokens` computed tokens and
computes `num_new_tokens` more. It samples exactly when that reaches its last known token: one token, and one more for
each drafted token after it that the model verifies. The result is a run of tokens: the accepted drafts, followed by
one token sampled from the model.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from quire.images import Image
from quire.prompt_embeds import PromptEmbeds
from quire.sampling import SamplingParameters


class SamplingPlan(msgspec.Struct, frozen=True, array_like=True):
    """How the runner samples for one sequence: the request's parameters, and what the engine adds to them."""

    parameters: SamplingParameters = SamplingParameters()
    seed: int = 0  # 64-bit key of the counter-based noise: the request's seed, or a drawn one, mixed with the choice
    suppress_token_ids: tuple[int, ...] = ()  # not sampled before min_tokens are generated
    num_prompt_logprobs: int | None = None  # the request's, if this sequence is the one that reports them
    follows_grammar: bool = False  # the allowed tokens come with each step, as TokenMasks


class NewSequence(msgspec.Struct, frozen=True, array_like=True):
    """A sequence that takes a slot of the runner: new, resumed from another worker, or back after a preemption."""

    slot: int  # row of the runner's persistent buffers; 0 <= slot < max_num_seqs
    token_ids: list[int]  # all known tokens: prompt, and any output from before a preemption or another worker
    num_prompt_tokens: int
    num_computed_tokens: int  # e.g. found in the prefix cache
    block_ids: list[list[int]]  # block tables so far, one per group of layers
    sampling: SamplingPlan
    # For a prompt given as embeddings: the rows of its positions that are not computed yet. Their token ids are
    # placeholders.
    prompt_embeds: PromptEmbeds | None = None
    adapter_slot: int = 0  # device slot of its adapter: see AdapterChanges; 0 for none
    images: list[Image] = []  # those of its prompt, without pixels
    image_keys: list[int] = []  # for each image, that of its encoding; 0 if all of its tokens are computed
    snapshot: int = -1  # place of the saved states that its recurrent layers begin with; -1 for none


class ScheduledSequence(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What one sequence computes in this step. Not tracked by the garbage collector: cannot be part of a cycle."""

    slot: int
    num_computed_tokens: int  # before the step
    num_new_tokens: int  # including drafted ones
    # A token is sampled at each of this many last new positions: 1 + the number of drafted tokens if the last known
    # token is among the new ones, else 0.
    num_sampled_positions: int
    # Appended to its block tables before the step; empty if there are none, as for a NewSequence of this step.
    new_block_ids: list[list[int]]
    draft_token_ids: tuple[int, ...] = ()  # after the known tokens, to be verified
    # Tokens that the runner should draft after the sampled run, for the next step, as far as the block tables have room
    # for them. 0 if the control side drafts, or nothing does. If the sequence samples nothing yet, this has the draft
    # model compute the same tokens, to keep up.
    num_wanted_drafts: int = 0


class CacheSize(msgspec.Struct, frozen=True, array_like=True):
    """How many blocks and states each rank allocates."""

    num_blocks: int = 0
    num_host_blocks: int = 0  # of a second tier in host memory
    num_snapshots: int = 0  # saved states of recurrent layers
    num_host_snapshots: int = 0  # the same in host memory
    num_sequences: int = 0  # that run at once, each with its states; 0 for as many as the options say


class BlockTransfer(msgspec.Struct, frozen=True, array_like=True):
    """Blocks to move between the device and the place where a connector keeps them.

    Saved states of recurrent layers move like blocks. They are numbered after the blocks, on the device and in host
    memory, and come after them in each list.
    """

    block_ids: list[int]  # on the device
    places: Sequence[int | bytes]  # where each is kept, as named by the connector: a number in memory, or a hash
    key: int = 0  # under which its end is reported; 0 if the step waits for it


class Transfers(msgspec.Struct, frozen=True, array_like=True):
    """Transfers that a connector's store begins before a step computes, in this order: see block_stores/base.py."""

    saves: list[BlockTransfer] = []
    loads: list[BlockTransfer] = []
    cancelled: list[int] = []  # keys of transfers that nothing waits for


NO_TRANSFERS = Transfers()


class EndedTransfer(msgspec.Struct, frozen=True, array_like=True):
    """A transfer whose blocks the store will not touch again."""

    key: int
    num_blocks: int  # first blocks that were moved; fewer than all if it failed or was canceled


class AdapterPlacement(msgspec.Struct, frozen=True, array_like=True):
    """Places an adapter in a device slot from this step on, replacing what the slot held."""

    slot: int  # 1 to --max-loras
    key: int


class AdapterChanges(msgspec.Struct, frozen=True, array_like=True):
    """Changes of low-rank adapters before a step computes: some are dropped, then some placed, then reads are started.

    Each adapter is identified by a key that is never reused. It is read from its folder into host memory concurrently
    with steps, and StepResult.read_adapters reports the end; from then on it may be placed in a slot, any number of
    times, until it is dropped.
    """

    dropped: list[int] = []  # keys; their slots are not used until another adapter is placed there
    placed: list[AdapterPlacement] = []
    read: dict[int, str] = {}  # key -> folder, checked by the control side


NO_ADAPTER_CHANGES = AdapterChanges()


class EncodedRows(msgspec.Struct, frozen=True, array_like=True):
    """The embeddings of an image as bytes, on their way from one worker to another: see quire.v1.EncodedMedia."""

    dtype: str
    num_rows: int
    hidden_size: int
    num_deep: int
    kept: list[int]
    both_ways: bool
    data: bytes


class GrownRecording(msgspec.Struct, frozen=True, array_like=True):
    """Audio with which a recording goes on that has been encoded so far."""

    key: int  # of the recording
    audio: Image


class ImageChanges(msgspec.Struct, frozen=True, array_like=True):
    """Changes of encoded images: some are dropped after a step's new sequences have started, and encoding others is
    begun, or what another worker has encoded is received.

    Each encoding has a key that is never reused. Images are encoded concurrently with steps, and
    StepResult.encoded_images reports the end; from then on new sequences may use the image, until it is dropped.
    Sequences that have started keep it as long as they need it.

    A recording that goes on grows by audios, each with a key of its own, once its sequence has started; the sequence
    has what it hears of them from their end on. The recording is dropped when the sequence has lost its slot.
    """

    dropped: list[int] = []  # keys
    begun: dict[int, Image] = {}  # key -> image
    received: dict[int, EncodedRows] = {}  # key -> what has been encoded elsewhere
    grown: dict[int, GrownRecording] = {}  # key -> audio


NO_IMAGE_CHANGES = ImageChanges()


class StepPlan(msgspec.Struct, frozen=True, array_like=True):
    """One engine step. A step without sequences only advances transfers of blocks and adapters, and images."""

    step: int
    new_sequences: list[NewSequence]
    scheduled: list[ScheduledSequence]  # in batch order; a slot appears at most once
    transfers: Transfers = NO_TRANSFERS  # begun before anything is computed
    awaits_masks: bool = False  # TokenMasks follow the plan: only sampling waits for them
    adapters: AdapterChanges = NO_ADAPTER_CHANGES
    images: ImageChanges = NO_IMAGE_CHANGES
    # slot -> place where the states of recurrent layers after this step are saved; see kv_cache/snapshots.py.
    snapshots: dict[int, int] = {}

    @property
    def num_tokens(self) -> int:
        """Tokens computed by this step."""
        return sum(sequence.num_new_tokens for sequence in self.scheduled)

    @property
    def has_drafts(self) -> bool:
        """Whether any sequence samples more than one token."""
        return any(sequence.num_sampled_positions > 1 for sequence in self.scheduled)


class TokenMasks(msgspec.Struct, frozen=True, array_like=True):
    """Masks of the tokens that the sequences of a step that follow a grammar may sample.

    They are sent after the plan, because they depend on tokens that the previous step may still be sampling while this
    step's forward pass begins. A sequence that has ended in the meantime has no mask: what it samples is discarded.
    """

    slots: list[int] = []  # each repeated for every position that its sequence samples, in order
    # For each entry, ceil(vocabulary / 32) words of 32 bits, little-endian: bit i % 32 of word i // 32 is token i.
    bits: bytes = b""


class PositionLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log-probabilities at one position: the token at that position first, then the most likely ones."""

    token_ids: list[int]
    logprobs: list[float]
    rank: int  # of token_ids[0]; 1 is the most likely


class StageTimes(msgspec.Struct, frozen=True, array_like=True):
    """When a pipeline stage worked on a step, in seconds of the machine's monotonic clock."""

    began: float
    waited: float  # seconds in between spent waiting for other stages
    ended: float


OVERFLOW = "the model's values overflowed, or no token is left to sample"
"""Why a sequence failed whose largest logit is not finite: its logits overflowed, or all tokens are masked."""


class StepResult(msgspec.Struct, frozen=True, array_like=True):
    """The results of a step."""

    # One entry for each scheduled sequence that samples and has not failed, in batch order.
    sampled_slots: list[int]
    # The run of tokens that continues the known ones: at least one token, at most one for each sampled position.
    sampled_token_ids: list[list[int]]
    # slot -> log-probabilities of each token of its run; only for sequences that requested them.
    logprobs: dict[int, list[PositionLogprobs]]
    # slot -> log-probabilities of the prompt tokens whose predecessor was computed in this step.
    prompt_logprobs: dict[int, list[PositionLogprobs]]
    # Milliseconds of the model's forward pass, and of the whole step with sampling; over all stages.
    forward_milliseconds: float
    execute_milliseconds: float
    # slot -> why its sequence failed, worded for the caller; the other sequences of the step are unaffected.
    failed_slots: dict[int, str] = {}
    ended_transfers: list[EndedTransfer] = []  # since the last step
    # slot -> tokens drafted after its run, at most as many as were requested.
    draft_token_ids: dict[int, list[int]] = {}
    # Why the draft model is no longer used, in the step in which it failed; the step itself is unaffected.
    draft_failure: str = ""
    draft_milliseconds: float = 0.0  # part of the step's time spent in the draft model
    read_adapters: dict[int, str] = {}  # key -> empty, or the error; reads that ended on all ranks since the last step
    encoded_images: dict[int, str] = {}  # the same for encodings of images
    # slot -> the position of its first row and the rows of tokens from there on (see RoutedExpertsForm): those that the
    # step computed, and before them, for a new sequence, those that were cached.
    routed_experts: dict[int, tuple[int, bytes]] = {}
    # slot -> for each token of its run, those that it was sampled from; only with --return-sampling-mask.
    sampling_masks: dict[int, list[list[int]]] = {}
    is_dual_batch: bool = False  # the step ran as two halves: see parallel/dual_batch.py
    stages: list[StageTimes] = []  # a rank's own stage, or all stages once merged; empty with one stage


class RoutedExpertsForm(msgspec.Struct, frozen=True, array_like=True):
    """How the experts that a token was routed to are written down: a number for each layer and choice."""

    num_layers: int  # those without experts, whose numbers are 0, included
    experts_per_token: int
    id_bytes: int  # size of a number, little-endian

    @property
    def bytes_per_token(self) -> int:
        """Size of one token's numbers."""
        return self.num_layers * self.experts_per_token * self.id_bytes


class PoolingSpec(msgspec.Struct, frozen=True, array_like=True):
    """Properties known only from the loaded model."""

    embedding_size: int  # values per sequence; the next, values per token
    token_embedding_size: int
    type_vocab_size: int
    pooling_type: str  # CLS, LAST, MEAN, ALL or STEP


class KvCacheSpec(msgspec.Struct, frozen=True, array_like=True):
    """What the control side must know about the model to manage its KV cache and check requests."""

    architecture: str
    dtype: str
    device: str
    vocab_size: int
    max_model_len: int  # from the model's configuration, or reduced by the options
    bytes_per_block: int  # all layers of a group and of a draft model, on one rank; 0 without attention layers
    available_bytes: int  # for the KV cache and states, on the rank with the least
    attention_backend: str
    block_size: int  # in tokens; chosen by the backend if the options do not set it
    max_num_batched_tokens: int  # token budget of a step; depends on the device if the options do not set it
    windows: tuple[int | None, ...] = (None,)  # of each group of layers: see layer_groups.py
    embedding_size: int = 0  # size of the model's input embeddings
    accepts_images: bool = False
    accepts_videos: bool = False
    accepts_audio: bool = False
    encoder_tokens: int = 0  # see ModelFacts
    frames_per_token: int = 0  # the same
    bidirectional_images: bool = False  # see ModelFacts.whole_image_tokens
    cpu_kernels: str = ""  # on a CPU: the level of the C++ kernels, or torch
    batch_invariant: bool = False  # results of a sequence do not depend on the rest of the batch
    state_bytes: int = 0  # states of recurrent layers for all sequences that may run, on one rank
    # Modules that adapters may target, by their names in the checkpoint: (outputs, inputs) over all ranks; for an
    # embedding, (row size, vocabulary). Empty if no adapters are served.
    adapter_modules: dict[str, tuple[int, int]] = {}
    adapter_heads: list[str] = []  # those of them that stand on top of a pooled model; see read_folder
    draft_bytes_per_block: int = 0  # the part of bytes_per_block used by a draft model's layers
    lockstep_ranks: int = 0  # data-parallel ranks that compute experts together; 0 if the model has none to share
    num_stages: int = 1  # pipeline stages: see parallel/stages.py
    routed_experts: RoutedExpertsForm | None = None  # None if they are not returned
    pooling: PoolingSpec | None = None  # set if the model is served for pooling
