"""A sequence writes a recording down while it comes: token for token what Transformers writes while it comes there."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from msgspec.structs import replace as changed

from engine_svc.core.engine import Engine
from engine_svc.media.base import tensor_of
from engine_svc.requests.outputs import FinishReason
from engine_svc.requests.request import GenerationRequest, RequestLimits
from engine_svc.requests.validation import validate
from quire.errors import InvalidRequest, QuireError
from quire.images import Image
from quire.media import MediaKind
from quire.sampling import SamplingParameters
from tests.support.audio_files import audio_file, sine
from tests.support.mistral_media import make_mistral_model, mistral_request
from tests.support.run_engine import GREEDY, advance, running_engine

FRAMES = 8  # that a token hears
DELAY = 2  # tokens, as tekken.json has it
UNLIMITED = changed(GREEDY, max_tokens=None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_mistral_model(tmp_path_factory.mktemp("model"), "voxtral_realtime")


@pytest.fixture(scope="module")
def whole(folder: Path) -> GenerationRequest:
    """The recording when it is over."""
    messages = [{"role": "user", "content": [{"type": "audio"}]}]
    recording = audio_file(sine(1.9, 700), "wavf")
    return mistral_request(folder, messages, [recording], UNLIMITED, MediaKind.AUDIO, transcription="")


@pytest.fixture(scope="module")
def expected(folder: Path, whole: GenerationRequest) -> list[int]:
    """The likeliest text in float64, of features that come token by token."""
    model = transformers.VoxtralRealtimeForConditionalGeneration.from_pretrained(folder, dtype=torch.float64).eval()
    ids = torch.tensor([list(whole.prompt_token_ids)])
    features = tensor_of(whole.images[0].inputs[0], torch.device("cpu")).double()
    first, end = ids.shape[1] * FRAMES, features.shape[-1]

    def coming() -> Iterator[torch.Tensor]:
        yield features[..., :first]
        # The text has as many tokens as the recording: none hears the last.
        yield from (features[..., start : start + FRAMES] for start in range(first, end - FRAMES, FRAMES))

    with torch.inference_mode():
        output = model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), input_features=coming(), num_delay_tokens=DELAY,
            do_sample=False, eos_token_id=None, pad_token_id=0, max_length=10**9,
        )  # fmt: skip
    return output[0, ids.shape[1] :].tolist()


def part(image: Image, start: int, end: int, *, goes_on: bool = False) -> Image:
    """What some of its tokens hear."""
    features, mask = image.inputs
    values = tensor_of(features, torch.device("cpu"))[..., start * FRAMES : end * FRAMES].contiguous()
    shape = tuple(values.shape)
    return replace(image, goes_on=goes_on, inputs=(
        replace(features, shape=shape, data=values.numpy().tobytes()),
        replace(mask, shape=(1, shape[-1]), data=b"\1" * shape[-1]),
    ))  # fmt: skip


def begun(whole: GenerationRequest, sampling: SamplingParameters = UNLIMITED) -> GenerationRequest:
    """The request, with what the prompt and one token more hear."""
    count = len(whole.prompt_token_ids) + 1
    return replace(whole, sampling=sampling, images=(part(whole.images[0], 0, count, goes_on=True),))


def rest(whole: GenerationRequest, sizes: Iterable[int]) -> list[Image]:
    """What comes after that, in pieces of so many tokens; the last has all that is left."""
    place, (image,), found = len(whole.prompt_token_ids) + 1, whole.images, []
    for size in sizes:
        found.append(part(image, place, place + size))
        place += size
    return [*found, part(image, place, image.num_frames // FRAMES)]


class Listener:
    """Runs an engine, and keeps what it writes."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.token_ids: dict[int, list[int]] = {}
        self.ended: dict[int, tuple[FinishReason | None, QuireError | None]] = {}
        self.preemptions = 0

    def settle(self) -> None:
        """Runs until there is nothing to do."""
        while self.engine.has_work:
            for delta in advance(self.engine):
                self.token_ids.setdefault(delta.key, []).extend(delta.token_ids)
                if delta.is_final:
                    self.ended[delta.key] = delta.finish_reason, delta.error
                    self.preemptions += delta.usage.preemptions if delta.usage else 0


@pytest.mark.parametrize("options", [{}, {"max_num_batched_tokens": 4, "max_num_seqs": 4, "block_size": 4}], ids=str)
def test_it_writes_what_it_has_heard_and_waits(
    folder: Path, whole: GenerationRequest, expected: list[int], options: dict[str, Any]
) -> None:
    with running_engine(folder, **options) as engine:
        listener, heard = Listener(engine), 2
        engine.add(1, begun(whole))
        listener.settle()
        assert listener.token_ids[1] == expected[:heard]
        *pieces, last = rest(whole, (1, 1, 3, 2))
        for piece in pieces:
            engine.hear(1, piece, is_last=False)
            heard += piece.num_frames // FRAMES
            listener.settle()
            assert (listener.token_ids[1], listener.ended) == (expected[:heard], {})
        engine.hear(1, last, is_last=True)
        listener.settle()
        assert (listener.token_ids[1], listener.ended[1]) == (expected, (FinishReason.STOP, None))


def test_audio_comes_while_it_runs(folder: Path, whole: GenerationRequest, expected: list[int]) -> None:
    """Whenever it comes, and beside others that preempt each other."""
    chance = random.Random(7)
    with running_engine(folder, num_blocks=16, block_size=4, max_num_batched_tokens=16) as engine:
        listener = Listener(engine)
        waiting = {key: rest(whole, [1] * 12) for key in (1, 2, 3)}
        for key in waiting:
            engine.add(key, begun(whole))
        while any(waiting.values()):
            key = chance.choice([key for key, pieces in waiting.items() if pieces])
            piece = waiting[key].pop(0)
            engine.hear(key, piece, is_last=not waiting[key])
            for _ in range(chance.randrange(4)):
                for delta in advance(engine):
                    listener.token_ids.setdefault(delta.key, []).extend(delta.token_ids)
        listener.settle()
        assert listener.preemptions
        assert listener.token_ids == dict.fromkeys(waiting, expected)


def test_one_that_listens_leaves_the_engine_idle(folder: Path, whole: GenerationRequest, expected: list[int]) -> None:
    with running_engine(folder) as engine:
        listener = Listener(engine)
        engine.add(1, begun(whole))
        listener.settle()
        assert not (engine.has_work or engine.load().busy) and engine.load().running_sequences == 1
        engine.add(2, whole)
        listener.settle()
        assert (listener.token_ids[2], 1 in listener.ended) == (expected, False)
        engine.abort(1)
        listener.settle()
        assert listener.ended[1] == (FinishReason.ABORT, None)


def test_who_finds_no_place_beside_it_waits(folder: Path, whole: GenerationRequest, expected: list[int]) -> None:
    with running_engine(folder, max_num_seqs=1) as engine:
        listener = Listener(engine)
        engine.add(1, begun(whole))
        listener.settle()
        engine.add(2, whole)
        advance(engine)
        assert engine.has_work and engine.is_waiting
        engine.abort(1)
        listener.settle()
        assert listener.token_ids[2] == expected


def test_it_may_write_less(folder: Path, whole: GenerationRequest, expected: list[int]) -> None:
    with running_engine(folder) as engine:
        listener = Listener(engine)
        engine.add(1, begun(whole, changed(GREEDY, max_tokens=3)))
        for key in (1, 1, 9):  # unknown ones are ignored
            engine.hear(key, part(whole.images[0], 0, 2), is_last=False)
        listener.settle()
        assert (len(listener.token_ids[1]), listener.ended[1]) == (3, (FinishReason.LENGTH, None))


def test_recordings_have_a_limit(folder: Path, whole: GenerationRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    request = begun(whole)
    monkeypatch.setattr("engine_svc.requests.recording.MAX_IMAGES_BYTES", request.images[0].num_bytes + 700)
    with running_engine(folder) as engine:
        listener = Listener(engine)
        engine.add(1, request)
        for piece in rest(whole, (1, 1))[:2]:
            engine.hear(1, piece, is_last=False)
        listener.settle()
    assert "the recording takes more than" in str(listener.ended[1][1])


@pytest.mark.parametrize(
    ("sizes", "is_last", "message"),
    [
        ((0, 1), True, "it has 8 frames; expected those of 2 or more whole tokens, 8 each"),
        ((1.5,), False, "it has 12 frames; expected those of 1 or more whole tokens"),
        ((2, 2), True, "the recording is over"),
    ],
)
def test_wrong_audio_ends_the_request(
    folder: Path, whole: GenerationRequest, sizes: tuple[float, ...], is_last: bool, message: str
) -> None:
    (image,) = whole.images
    with running_engine(folder) as engine:
        listener = Listener(engine)
        engine.add(1, begun(whole))
        for size in sizes:
            if size:
                features, mask = part(image, 0, 3).inputs
                count = int(size * FRAMES)
                inputs = (
                    replace(features, shape=(1, 16, count), data=features.data[: 64 * count]),
                    replace(mask, shape=(1, count), data=mask.data[:count]),
                )
                engine.hear(1, replace(image, inputs=inputs), is_last=is_last)
        listener.settle()
        reason, error = listener.ended[1]
    assert reason is FinishReason.ERROR and isinstance(error, InvalidRequest) and message in error.message


def test_audio_of_another_form_ends_the_request_alone(folder: Path, whole: GenerationRequest) -> None:
    """Even if it comes together with what fits."""
    piece = part(whole.images[0], 0, 1)
    features, mask = piece.inputs
    others = (
        (replace(features, shape=(1, 8, FRAMES), data=features.data[: 32 * FRAMES]), mask),
        (replace(features, dtype="uint8", data=features.data[: 16 * FRAMES]), mask),
        (features, replace(mask, shape=(1, 2 * FRAMES), data=2 * mask.data)),
        (features, replace(mask, shape=(FRAMES,))),
    )
    with running_engine(folder) as engine:
        listener = Listener(engine)
        for key, inputs in enumerate(others):
            engine.add(key, begun(whole))
            listener.settle()
            engine.hear(key, piece, is_last=False)
            engine.hear(key, replace(piece, inputs=inputs), is_last=False)
            listener.settle()
            reason, error = listener.ended[key]
            assert (reason, "they differ in their frames" in str(error)) == (FinishReason.ERROR, True)


def test_only_recordings_that_are_over_end_or_go_on_elsewhere(whole: GenerationRequest) -> None:
    limits = RequestLimits(("m",), 3000, 2048, 20, "fcfs", accepts_media=True, frames_per_token=FRAMES)
    validate(begun(whole), limits)
    changes = {"n": {"sampling": changed(UNLIMITED, n=2)}, "remote_decode": {"remote_decode": True},
               "kv_source": {"kv_source": "h:1"}, "hands_over": {"hands_over": True}}  # fmt: skip
    for name, change in changes.items():
        with pytest.raises(InvalidRequest, match=f"{name} is set, but the recording goes on"):
            validate(replace(begun(whole), **change), limits)
    with pytest.raises(InvalidRequest, match="does not write while it hears"):
        validate(begun(whole), replace(limits, frames_per_token=0))
