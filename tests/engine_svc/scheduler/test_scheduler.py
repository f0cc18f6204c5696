"""Which sequences run in a step, and how many tokens of each."""

from __future__ import annotations

import itertools

from engine_svc.requests.admission import make_sequences
from engine_svc.requests.request import GenerationRequest
from engine_svc.requests.sequence import LiveRequest, Sequence, SequenceState
from engine_svc.scheduler.batch import Batch
from engine_svc.scheduler.queue import WaitingQueue
from engine_svc.scheduler.scheduler import Scheduler
from quire.images import Image, ImageInput
from quire.options.scheduler import SchedulerOptions
from quire.sampling import SamplingParameters
from tests.support.kv_cache import make_manager

_PLACEHOLDER = 10**6


def sequence(
    arrival: int, prompt: int, rank: int = 0, images: tuple[Image, ...] = (), placeholders: tuple[range, ...] = ()
) -> Sequence:
    """
    Args:
        placeholders: places of tokens that stand for embeddings of images.
    """
    tokens = list(range(arrival * 100, arrival * 100 + prompt))
    for place in itertools.chain(*placeholders):
        tokens[place] = _PLACEHOLDER
    request = GenerationRequest("r", tokens, SamplingParameters(), images=images)
    live = LiveRequest(arrival, request, frozenset(), 0.0)
    live.sequences = make_sequences(live, (rank, arrival), 1000, seed=0)
    return live.sequences[0]


def scheduler(
    blocks: int = 100, budget: int = 16, seqs: int = 4, chunked: bool = True, whole_images: bool = False,
    **options: int,
) -> Scheduler:  # fmt: skip
    chosen = SchedulerOptions(max_num_seqs=seqs, enable_chunked_prefill=chunked, **options)
    return Scheduler(make_manager(blocks, 4), chosen, budget, whole_images=whole_images)


def apply(batch: Batch) -> None:
    """Appends sampled tokens, as a step would."""
    for each in batch.sequences.values():
        if each.num_pending_tokens:
            each.append([1], 1)


def counts(batch: Batch) -> dict[int, int]:
    return {batch.sequences[entry.slot].order[1]: entry.num_new_tokens for entry in batch.plan().scheduled}


def image(offset: int, num_tokens: int) -> Image:
    return Image(offset, num_tokens, (ImageInput("pixel_values", "uint8", (1,), bytes([offset])),))


def chunks(subject: Scheduler, first: Sequence) -> list[int]:
    """Tokens of a prompt that each step computes."""
    subject.add(first)
    subject.images.end(dict.fromkeys(subject.schedule().plan().images.begun, ""))
    found = []
    while first.num_computed_tokens < first.num_prompt_tokens:
        found.append(counts(subject.schedule())[first.order[1]])
    return found


def test_images_are_not_split_between_steps_if_that_is_wanted() -> None:
    """Only one that is longer than a step is."""
    images = (image(10, 9), image(22, 20), image(43, 16))
    assert chunks(scheduler(), sequence(1, 60, images=images)) == [16, 16, 16, 12]
    assert chunks(scheduler(disable_chunked_mm_input=True), sequence(1, 60, images=images)) == [10, 12, 16, 5, 16, 1]


def test_images_whose_tokens_attend_in_both_directions_are_never_split() -> None:
    """Steps end before them, and limits for long prompts do not count within them."""
    images = (image(10, 9), image(22, 12), image(43, 16))
    assert chunks(scheduler(whole_images=True), sequence(1, 60, images=images)) == [10, 12, 16, 5, 16, 1]
    limited = scheduler(whole_images=True, long_prefill_token_threshold=8)
    assert chunks(limited, sequence(1, 30, images=images[:1])) == [8, 2, 9, 8, 3]


def test_of_a_video_each_frame_is_computed_whole() -> None:
    """Other tokens are between them, where steps may end."""
    frames = (range(5, 13), range(16, 24), range(26, 34))
    video = (image(5, 29),)
    subject = scheduler(whole_images=True)
    assert chunks(subject, sequence(1, 40, images=video, placeholders=frames)) == [16, 10, 14]
    kept_together = scheduler(disable_chunked_mm_input=True)
    assert chunks(kept_together, sequence(1, 40, images=video, placeholders=frames)) == [5, 16, 16, 3]


def test_an_image_waits_for_a_step_that_has_room_for_all_of_it() -> None:
    """Meanwhile others go on, those after it in order too."""
    subject = scheduler(whole_images=True)
    decoding = sequence(0, 2)
    subject.add(decoding)
    subject.add(sequence(1, 20, images=(image(2, 16),)))
    subject.images.end(dict.fromkeys(subject.schedule().plan().images.begun, ""))
    apply(last := subject.schedule())
    assert counts(last) == {0: 1, 1: 2}
    subject.add(sequence(2, 3))
    steps = []
    for _ in range(3):
        steps.append(counts(last := subject.schedule()))
        apply(last)
    subject.finish(decoding)
    steps.append(counts(subject.schedule()))
    assert steps == [{0: 1, 2: 3}, {0: 1, 2: 1}, {0: 1, 2: 1}, {1: 16}]


def test_running_first_then_waiting_within_the_budget() -> None:
    subject = scheduler()
    for arrival, prompt in enumerate((10, 20, 3)):
        subject.add(sequence(arrival, prompt))
    steps = []
    for _ in range(3):
        batch = subject.schedule()
        steps.append(counts(batch))
        apply(batch)
    assert steps == [{0: 10, 1: 6}, {0: 1, 1: 14, 2: 1}, {0: 1, 1: 1, 2: 2}]


def steps_of(subject: Scheduler, prompts: tuple[int, ...], count: int) -> list[dict[int, int]]:
    for arrival, prompt in enumerate(prompts):
        subject.add(sequence(arrival, prompt))
    steps = []
    for _ in range(count):
        batch = subject.schedule()
        steps.append(counts(batch))
        apply(batch)
    return steps


def test_a_long_prompt_computes_so_much_in_a_step_and_short_ones_pass_long_ones_by() -> None:
    subject = scheduler(max_num_partial_prefills=2, long_prefill_token_threshold=8)
    assert steps_of(subject, (20, 30, 3, 12), 3) == [{0: 8, 2: 3}, {0: 8, 2: 1}, {0: 4, 1: 8, 2: 1}]


def test_long_prompts_stay_in_order_however_many_wait() -> None:
    subject = scheduler(max_num_partial_prefills=4, long_prefill_token_threshold=4, blocks=1000)
    assert steps_of(subject, (20,) * 70, 5) == [{0: 4}] * 4 + [{0: 4, 1: 4}]


def test_several_long_prompts_at_once() -> None:
    limits = {"max_num_partial_prefills": 3, "max_long_partial_prefills": 2, "long_prefill_token_threshold": 4}
    assert steps_of(scheduler(**limits), (20, 20, 20, 3), 2) == [{0: 4, 1: 4, 3: 3}, {0: 4, 1: 4, 3: 1}]


def test_a_second_partial_prefill_waits() -> None:
    subject = scheduler(max_long_partial_prefills=9, long_prefill_token_threshold=4)
    assert steps_of(subject, (20, 20, 3), 1) == [{0: 4}]
    subject = scheduler(max_long_partial_prefills=9, long_prefill_token_threshold=4, max_num_partial_prefills=2)
    assert steps_of(subject, (20, 20, 3), 1) == [{0: 4, 1: 4, 2: 3}]


def test_a_batch_knows_who_samples_and_who_only_computes_a_prompt() -> None:
    batch = Batch(0, 100)
    request = GenerationRequest("r", [1, 2, 3], SamplingParameters(max_tokens=0))
    (prompt_only,) = make_sequences(LiveRequest(0, request, frozenset(), 0.0), (0, 0), 1000, seed=0)
    samples, partial = sequence(1, 5), sequence(2, 5)
    for slot, (each, count) in enumerate(((samples, 5), (partial, 4), (prompt_only, 3))):
        each.slot = slot
        batch.add(each, count, [])
    assert (len(batch.sampling), batch.completed_prompts) == (1, [2])


def test_a_long_prompt_leaves_running_sequences_their_token() -> None:
    subject = scheduler(blocks=100, budget=8)
    older, younger = sequence(0, 40), sequence(1, 2)
    subject.add(younger)
    apply(subject.schedule())
    subject.add(older)  # first in order, as after a preemption
    apply(subject.schedule())
    assert counts(subject.schedule()) == {0: 7, 1: 1}


def test_without_chunking_a_prompt_waits_for_a_budget_that_holds_it() -> None:
    subject = scheduler(chunked=False)
    for arrival in range(2):
        subject.add(sequence(arrival, 10))
    batch = subject.schedule()
    assert counts(batch) == {0: 10}
    apply(batch)
    assert counts(subject.schedule()) == {0: 1, 1: 10}


def test_slots_are_bounded_and_reused() -> None:
    subject = scheduler(seqs=2)
    sequences = [sequence(arrival, 1) for arrival in range(3)]
    for each in sequences:
        subject.add(each)
    apply(subject.schedule())
    assert subject.num_running == 2
    freed = sequences[0].slot
    subject.finish(sequences[0])
    apply(subject.schedule())
    assert sequences[2].slot == freed
    subject.check()


def test_the_last_in_order_yields() -> None:
    subject = scheduler(blocks=4)
    first, second = sequence(0, 7), sequence(1, 7)
    subject.add(first)
    subject.add(second)
    for _ in range(3):  # 7 tokens, then 8, then 9: a third block is needed
        apply(subject.schedule())
    assert (first.state, second.state) == (SequenceState.RUNNING, SequenceState.PREEMPTED)
    assert (second.slot, second.num_computed_tokens, second.table.block_ids) == (-1, 0, [])
    assert subject.preemptions == 1
    subject.check()
    subject.finish(first)
    batch = subject.schedule()
    assert 0 < counts(batch)[1] <= 9
    assert second.num_computed_tokens == 9
    subject.check()


def test_a_prompt_starts_only_when_all_of_it_has_room() -> None:
    subject = scheduler(blocks=5)
    subject.add(sequence(0, 8))
    subject.add(sequence(1, 16))
    assert counts(subject.schedule()) == {0: 8}


def test_queue_keeps_the_order_and_its_count() -> None:
    queue = WaitingQueue()
    entries = [sequence(arrival, arrival + 1, rank) for arrival, rank in ((3, 1), (1, 1), (2, 0), (4, 0))]
    for each in entries:
        queue.push(each)
    assert queue.num_uncomputed_tokens == 4 + 2 + 3 + 5
    queue.remove(entries[1])
    order = []
    while len(queue):
        order.append(queue.at(0).order[1])
        queue.remove(queue.at(0))
    assert order == [2, 4, 3]
    assert queue.num_uncomputed_tokens == 0
