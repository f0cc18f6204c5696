"""Audio of conversations: prepared once, apart from images, and found at its places among the tokens."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import pytest_asyncio
import transformers

from quire.block_hash import block_keys
from quire.errors import InvalidRequest, QuireError, StartupError
from quire.images import Image, contents_of
from quire.media import MediaKind
from quire.options.multimodal import ImageProcessorOptions
from quire.options.tokenizer import TokenizerOptions
from quire.rpc.images import to_images
from quire.rpc.status import from_rpc_error
from quire.v1 import tokenizer_pb2, tokenizer_pb2_grpc
from tests.support.audio_files import RATE, audio_file, sine
from tests.support.audio_processors import AUDIO_FAMILIES, NUM_MELS, save_audio_processor
from tests.support.films import film
from tests.support.folders import FolderOf, made_once
from tests.support.gateway_stack import RunningTokenizer, running_tokenizer, save_tokenizer
from tests.support.media_preparers import in_this_process
from tests.support.vision_models import make_vision_model, png_bytes, random_frames, random_image
from tests.support.waiting import WAIT_SECONDS
from tokenizer_svc.child import Message
from tokenizer_svc.child_pool import ChildEnded, ChildPool, ChildTooSlow
from tokenizer_svc.media import MediaPreparer, MediaSettings, Medium
from tokenizer_svc.media_process import make

pytestmark = pytest.mark.asyncio(loop_scope="module")

SAMPLES, OTHER = sine(1.5), sine(3.3, 880.0, seed=1)
FILE, LONGER = audio_file(SAMPLES), audio_file(OTHER, "flac")
AUDIO = {"type": "audio"}
NONE = MediaSettings({}, {})
STRINGS = "{% for message in messages %}{{ message.content }}{% endfor %}"


def text(said: str) -> dict[str, str]:
    return {"type": "text", "text": said}


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> FolderOf:
    return made_once(tmp_path_factory, save_audio_processor)


@dataclass
class Service:
    """A tokenizer service of a model that reads audio."""

    stub: tokenizer_pb2_grpc.TokenizerServiceStub
    running: RunningTokenizer
    reference: Any  # Transformers' processor

    @property
    def preparer(self) -> MediaPreparer:
        return self.running.servicer._media

    async def render(self, content: Any, files: Sequence[bytes], **fields: Any) -> tokenizer_pb2.RenderChatResponse:
        messages = json.dumps([{"role": "user", "content": content}]).encode()
        try:
            return await self.stub.RenderChat(  # type: ignore[no-any-return]
                tokenizer_pb2.RenderChatRequest(messages_json=messages, audios=files, **fields), timeout=WAIT_SECONDS
            )
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from None

    async def refusal(self, content: Any, files: Sequence[bytes], **fields: Any) -> QuireError:
        with pytest.raises(InvalidRequest) as caught:
            await self.render(content, files, **fields)
        return caught.value


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(folder_of: FolderOf) -> AsyncIterator[Service]:
    folder = folder_of("glmasr")
    options = TokenizerOptions(trust_request_chat_template=True)
    async with (
        running_tokenizer(folder, tokenizer_options=options) as running,
        grpc.aio.insecure_channel(f"127.0.0.1:{running.port}") as channel,
    ):
        stub = tokenizer_pb2_grpc.TokenizerServiceStub(channel)
        yield Service(stub, running, transformers.AutoProcessor.from_pretrained(folder))


def values(image: Image, name: str) -> Any:
    each = next(each for each in image.inputs if each.name == name)
    return np.frombuffer(each.data, each.dtype).reshape(each.shape)


async def test_a_conversation_is_what_it_is_in_transformers(service: Service) -> None:
    content = [text("A"), AUDIO, text("B"), AUDIO]
    answer = await service.render(content, [FILE, LONGER], block_size=4)
    reference = service.reference
    rendered = reference.tokenizer.apply_chat_template(
        [{"role": "user", "content": content}], chat_template=reference.chat_template, add_generation_prompt=True,
        tokenize=False,
    )  # fmt: skip
    assert answer.text == rendered
    token_ids, placed = list(answer.sequence.token_ids), to_images(answer.images)
    before, between, after = rendered.split(reference.audio_token)
    expected = [
        reference(text=[f"{start}{reference.audio_token}{end}"], audio=[samples], sampling_rate=RATE)
        for start, samples, end in ((before, SAMPLES, between), ("", OTHER, after))
    ]
    assert token_ids == [token for each in expected for token in each["input_ids"][0].tolist()]
    inside = [place for image in placed for place in range(image.offset, image.end)]
    assert inside == [place for place, token in enumerate(token_ids) if token == reference.audio_token_id]
    for image, each in zip(placed, expected, strict=True):
        assert np.allclose(values(image, "input_features"), each["input_features"].numpy(), atol=1e-3)
        assert np.array_equal(values(image, "input_features_mask"), each["input_features_mask"].numpy().astype(bool))
    assert answer.audio_seconds == pytest.approx(1.5 + 3.3)
    assert list(answer.sequence.block_keys) == block_keys(token_ids, 4, "", contents_of(placed))
    assert (await service.render([text("A")], [])).audio_seconds == 0


async def test_an_audio_is_prepared_once(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    pool, asked = service.preparer._pools[MediaKind.AUDIO], []
    ask = pool.ask

    async def note(message: Any) -> Any:
        asked.append(message.fields["kind"])
        return await ask(message)

    monkeypatch.setattr(pool, "ask", note)
    new = audio_file(sine(0.7, seed=9))
    for _ in range(2):
        assert (await service.render([AUDIO], [new])).audio_seconds == pytest.approx(0.7)
    assert asked == ["audio"]


async def test_templates_that_take_strings(service: Service) -> None:
    """They have what is around the token of GLM-ASR's audio, too. For audio alone, there is one process."""
    answer = await service.render([text("A"), AUDIO], [FILE], chat_template=STRINGS)
    wrapped = service.preparer.wrapped[MediaKind.AUDIO]
    assert answer.text == f"{wrapped}\nA"
    placeholder = service.preparer.placeholders[MediaKind.AUDIO]
    assert placeholder == AUDIO_FAMILIES["glmasr"].token != wrapped
    parts = await service.render([text("A"), AUDIO], [FILE])
    assert wrapped in parts.text
    assert parts.images[0].num_tokens == answer.images[0].num_tokens > 0
    assert {kind: len(pool._children) for kind, pool in service.preparer._pools.items()} == {
        MediaKind.IMAGE: 0, MediaKind.VIDEO: 0, MediaKind.AUDIO: 1,
    }  # fmt: skip


@pytest.mark.parametrize("family", AUDIO_FAMILIES)
async def test_every_family_is_asked_for_its_marks(
    folder_of: FolderOf, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    preparer = in_this_process(MediaPreparer(folder_of(family), ImageProcessorOptions()), monkeypatch)
    await preparer.start()
    assert preparer.placeholders == {MediaKind.AUDIO: AUDIO_FAMILIES[family].token}
    (prepared,) = await preparer.prepare([Medium(MediaKind.AUDIO, (FILE,))], NONE)
    inserted, _ = preparer.insert(f"A{preparer.placeholders[MediaKind.AUDIO]}", [prepared])
    assert inserted.count(AUDIO_FAMILIES[family].token) == prepared.num_tokens > 1


@pytest.mark.parametrize(
    ("content", "files", "fields", "words"),
    [
        ([AUDIO], [FILE, FILE], {}, "has written 1 audio placeholders (<|pad|>) for 2 audios"),
        ([text("<|pad|>"), AUDIO], [FILE], {}, "has written 2 audio placeholders (<|pad|>) for 1 audios"),
        ([AUDIO], [b""], {}, "The audio is empty. Send the file's content."),
        ([AUDIO], [b"no audio"], {}, "The audio is not in a known format"),
        ([AUDIO], [audio_file(sine(0.0001))], {}, "The audio is too short to have any tokens."),
        ([AUDIO], [FILE], {"image_processor_kwargs_json": b'{"crop": 1}'}, "'crop' in mm_processor_kwargs is no set"),
        ([AUDIO], [FILE], {"truncation": tokenizer_pb2.Truncation(num_tokens=3)}, "images, videos or audio cannot be"),
        ([AUDIO], [FILE], {"images": [png_bytes(random_image(9, 9, 1))]}, "This model reads no images."),
        ([AUDIO], [FILE], {"videos": [tokenizer_pb2.Video(files=[b"x"])]}, "This model reads no videos."),
    ],
)  # fmt: skip
async def test_what_is_refused(
    service: Service, content: Any, files: Sequence[bytes], fields: Mapping[str, Any], words: str
) -> None:
    error = await service.refusal(content, files, **fields)
    assert words in error.message


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (ChildTooSlow, "The audio takes longer than 20 s to prepare. Send a shorter one."),
        (ChildEnded, "The audio takes too much memory. Send a shorter one."),
    ],
)
async def test_an_audio_that_takes_too_much(
    service: Service, failure: type[Exception], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(message: Any) -> Any:
        raise failure

    monkeypatch.setattr(service.preparer._pools[MediaKind.AUDIO], "ask", fail)
    error = await service.refusal([AUDIO], [audio_file(sine(0.9, seed=5))])
    assert error.message == words


async def test_long_audio_fits_in_the_process_and_in_an_answer(tmp_path: Path) -> None:
    """With the 128 bands of the real models, an hour's quarter takes 46 MB."""
    save_audio_processor(tmp_path, "qwen3_asr")
    file = tmp_path / "processor_config.json"
    file.write_text(file.read_text().replace(f'"feature_size": {NUM_MELS}', '"feature_size": 128'))
    options = TokenizerOptions(trust_request_chat_template=True)
    async with (
        running_tokenizer(tmp_path, tokenizer_options=options) as running,
        grpc.aio.insecure_channel(
            f"127.0.0.1:{running.port}", options=[("grpc.max_receive_message_length", 64 * 2**20)]
        ) as channel,
    ):
        service = Service(tokenizer_pb2_grpc.TokenizerServiceStub(channel), running, None)
        long = audio_file(np.zeros(900 * RATE, np.float32), "flac")
        answer = await service.render([AUDIO], [long])
        assert answer.audio_seconds == 900
        assert answer.images[0].num_tokens == 900 * 13
        assert sum(len(each.data) for each in answer.images[0].inputs) > 45_000_000
        error = await service.refusal([AUDIO, AUDIO], [long, long])
        assert "are allowed. Send fewer or smaller" in error.message


async def test_models_without_audio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    preparer = MediaPreparer(make_vision_model(tmp_path / "llava", "llava"), ImageProcessorOptions())
    await in_this_process(preparer, monkeypatch).start()
    with pytest.raises(InvalidRequest, match="This model reads no audio"):
        await preparer.prepare([Medium(MediaKind.AUDIO, (FILE,))], NONE)
    save_tokenizer(tmp_path)
    preparer = MediaPreparer(tmp_path, ImageProcessorOptions())
    await preparer.start()
    with pytest.raises(InvalidRequest, match="reads text only: it comes without a processor for anything else"):
        await preparer.prepare([Medium(MediaKind.AUDIO, (FILE,))], NONE)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"video_pruning_rate": 0.5}, r"--video-pruning-rate 0\.5: this model's videos cannot be pruned"),
        ({"mm_processor_kwargs": {"do_resize": False}}, "--mm-processor-kwargs is for models that read images"),
    ],
)
async def test_settings_of_the_server_that_are_not_for_audio(
    folder_of: FolderOf, options: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    preparer = in_this_process(MediaPreparer(folder_of("glmasr"), ImageProcessorOptions(**options)), monkeypatch)
    with pytest.raises(StartupError, match=words):
        await preparer.start()


async def test_processes_of_audio_are_started_ahead_of_the_first_one(
    folder_of: FolderOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that cuts recordings, too."""
    preparer = in_this_process(MediaPreparer(folder_of("glmasr"), ImageProcessorOptions()), monkeypatch)
    started = []

    async def prepare(pool: ChildPool) -> None:
        started.append(pool._work)

    monkeypatch.setattr(ChildPool, "prepare", prepare)
    await preparer.start()
    await preparer.prepare_others()
    assert started == ["audio to prepare", "recordings to cut into pieces"]


@pytest.mark.parametrize("fields", ["[]", "{", '{"processor_class": ["GlmAsrProcessor"]}'])
async def test_files_that_are_wrong_do_not_stop_the_service(
    tmp_path: Path, fields: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their process ends, as in the test of images that starts one."""
    save_tokenizer(tmp_path)
    (tmp_path / "processor_config.json").write_text(fields)
    preparer = in_this_process(MediaPreparer(tmp_path, ImageProcessorOptions()), monkeypatch)
    await preparer.start()
    with pytest.raises(InvalidRequest, match="reads text only: its processor could not be started"):
        await preparer.prepare([Medium(MediaKind.AUDIO, (FILE,))], NONE)


async def test_what_a_process_reports(folder_of: FolderOf, tmp_path: Path) -> None:
    answer = make(Message({"folder": str(folder_of("qwen2_audio"))}))
    assert answer(Message()).fields == {
        "marks": {"audio": ["<|AUDIO|>", "<|audio_bos|><|AUDIO|><|audio_eos|>", 259]}, "mark_ids": {"audio": []},
        "can_prune": False, "fault": "",
    }  # fmt: skip
    vision = make(Message({"folder": str(make_vision_model(tmp_path, "qwen2_5_vl"))}))
    assert set(vision(Message()).fields["marks"]) == {"image", "video"}
    frames = film(random_frames(64, 64, 4, 1))
    found = vision(Message({"kind": "video", "settings": {}, "reading": {}, "sizes": [len(frames)]}, frames))
    assert found.fields["seconds"] == 0.0
