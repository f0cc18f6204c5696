"""Images of conversations: prepared once, in processes that may die, and found at their places among the tokens."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib.util
import json
import os
import signal
import struct
import zlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
import torch
from PIL import Image

from quire.block_hash import block_keys
from quire.errors import ContextTooLong, InvalidRequest, QuireError, StartupError, Unavailable
from quire.images import Image as PlacedImage
from quire.images import ImageInput, contents_of
from quire.media import MediaKind
from quire.options.multimodal import ImageProcessorOptions
from quire.options.tokenizer import TokenizerOptions
from quire.rpc.images import to_images
from quire.rpc.status import from_rpc_error
from quire.v1 import tokenizer_pb2, tokenizer_pb2_grpc
from tests.support.gateway_stack import RunningTokenizer, running_tokenizer, save_tokenizer
from tests.support.media_preparers import in_this_process
from tests.support.vision_models import make_vision_model, png_bytes, random_image, reference_processor
from tests.support.vision_models.embeddings import saved
from tests.support.waiting import WAIT_SECONDS, eventually
from tokenizer_svc.child import Message
from tokenizer_svc.media import MediaPreparer, MediaSettings, Medium, PreparedMedium
from tokenizer_svc.media_process import make

pytestmark = pytest.mark.asyncio(loop_scope="module")

FILE = png_bytes(random_image(60, 40, 1))  # 12 tokens
SIMILAR = png_bytes(random_image(60, 40, 2))
SMALL = png_bytes(random_image(28, 28, 3))  # 4 tokens
BLOCK = 4
# A template that takes contents as strings.
STRINGS = "{% for message in messages %}{{ message.content }}{% endfor %}"
IMAGE = {"type": "image"}


def text(said: str) -> dict[str, str]:
    return {"type": "text", "text": said}


async def prepare(
    preparer: MediaPreparer, files: Sequence[bytes], settings: Mapping[str, Any] = {}
) -> list[PreparedMedium]:
    media = [Medium(MediaKind.IMAGE, (file,)) for file in files]
    return await preparer.prepare(media, MediaSettings(settings, {}))


MESSAGES = [
    {"role": "user", "content": [text("Look at these pictures: "), IMAGE, IMAGE, text("What is on them?")]},
    {"role": "assistant", "content": "Noise."},
    {"role": "user", "content": [text("And here?"), IMAGE]},
]


@dataclass
class Service:
    """A tokenizer service of a vision model."""

    stub: tokenizer_pb2_grpc.TokenizerServiceStub
    running: RunningTokenizer
    reference: Any  # Transformers' processor

    @property
    def preparer(self) -> MediaPreparer:
        return self.running.servicer._media

    async def render(
        self, messages: Sequence[Any], files: Sequence[bytes], **fields: Any
    ) -> tokenizer_pb2.RenderChatResponse:
        request = tokenizer_pb2.RenderChatRequest(messages_json=json.dumps(messages).encode(), images=files, **fields)
        try:
            return await self.stub.RenderChat(request, timeout=WAIT_SECONDS)  # type: ignore[no-any-return]
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from None

    async def refusal(self, messages: Sequence[Any], files: Sequence[bytes], **fields: Any) -> QuireError:
        with pytest.raises(InvalidRequest) as caught:
            await self.render(messages, files, **fields)
        return caught.value

    def expected(self, rendered: str, images: Sequence[Image.Image]) -> list[int]:
        """The tokens of a rendered conversation by Transformers."""
        inputs = self.reference(text=[rendered], images=list(images), add_special_tokens=False)
        return list(inputs["input_ids"][0])


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_vision_model(tmp_path_factory.mktemp("qwen"), "qwen2_5_vl")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(qwen: Path) -> AsyncIterator[Service]:
    options = TokenizerOptions(trust_request_chat_template=True)
    async with (
        running_tokenizer(qwen, tokenizer_options=options) as running,
        grpc.aio.insecure_channel(f"127.0.0.1:{running.port}") as channel,
    ):
        stub = tokenizer_pb2_grpc.TokenizerServiceStub(channel)
        yield Service(stub, running, reference_processor(qwen))


def counted(folder: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> tuple[MediaPreparer, list[Message]]:
    """A preparer without processes, and what it has had prepared."""
    preparer, asked = MediaPreparer(folder, ImageProcessorOptions(**options)), []
    answer = make(Message({"folder": str(folder)}))
    preparer.use(answer(Message()).fields)

    async def ask(message: Message) -> Message:
        asked.append(message)
        return answer(message)

    monkeypatch.setattr(preparer._pools[MediaKind.IMAGE], "ask", ask)
    return preparer, asked


async def test_a_file_is_prepared_once(qwen: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    preparer, asked = counted(qwen, monkeypatch)
    (first,) = await prepare(preparer, [FILE])
    again, other = await prepare(preparer, [FILE, SIMILAR])
    assert first is again
    assert first.image.digest != other.image.digest
    assert len(asked) == 2
    few = {"size": {"shortest_edge": 784, "longest_edge": 784}}
    for _ in range(2):
        (smaller,) = await prepare(preparer, [FILE], few)
        assert smaller.num_tokens < first.num_tokens
    assert len(asked) == 3
    preparer.reset_cache()
    (anew,) = await prepare(preparer, [FILE])
    assert (anew, len(asked)) == (first, 4)


async def test_settings_of_the_server_are_the_defaults(qwen: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = ({"size": {"shortest_edge": size, "longest_edge": size}} for size in (784, 3136))
    preparer, asked = counted(qwen, monkeypatch, mm_processor_kwargs=few | {"do_normalize": False})
    (by_default,) = await prepare(preparer, [FILE])
    (as_asked,) = await prepare(preparer, [FILE], many)
    assert by_default.num_tokens < as_asked.num_tokens
    assert as_asked.image.pixel_shift == (0.0, 0.0, 0.0)
    assert [message.fields["settings"] for message in asked] == [
        few | {"do_normalize": False}, many | {"do_normalize": False},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mm_processor_kwargs": {"nonsense": 1}}, r'--mm-processor-kwargs \{"nonsense": 1\}: The model.*nonsense'),
        ({"mm_processor_kwargs": {"size": "large"}}, "--mm-processor-kwargs .*does not accept the image"),
        ({"media_io_kwargs": {"audio": {}}}, "--media-io-kwargs: this model reads no audio"),
    ],
)
async def test_settings_of_the_server_that_do_not_suit_the_model(
    qwen: Path, options: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    preparer = in_this_process(MediaPreparer(qwen, ImageProcessorOptions(**options)), monkeypatch)
    with pytest.raises(StartupError, match=words):
        await preparer.start()


async def test_settings_of_the_server_for_a_model_that_reads_text_only() -> None:
    for options in ({"mm_processor_kwargs": {"do_resize": False}}, {"media_io_kwargs": {"video": {"fps": 1}}}):
        with pytest.raises(StartupError, match=r"this (one|model)"):
            await MediaPreparer(None, ImageProcessorOptions(**options)).start()


async def test_a_cache_has_its_limit(qwen: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    none, asked = counted(qwen, monkeypatch, mm_processor_cache_gb=0.0)
    for _ in range(2):
        await prepare(none, [FILE])
    assert len(asked) == 2
    (image,) = await prepare(none, [FILE])
    some, asked = counted(qwen, monkeypatch, mm_processor_cache_gb=1.5 * image.num_bytes / 2**30)
    for file in (FILE, FILE, SIMILAR, FILE):
        await prepare(some, [file])
    assert len(asked) == 3  # there is room for one


async def test_many_images_of_a_request_take_turns(service: Service) -> None:
    """More than may wait at a time; with another request among them."""
    files = [png_bytes(Image.new("RGB", (28, 28), (number, 0, 0))) for number in range(80)]
    many, (one,) = await asyncio.gather(prepare(service.preparer, files), prepare(service.preparer, [SMALL]))
    assert len({each.image.digest for each in (*many, one)}) == 81
    assert {each.num_tokens for each in many} == {4}
    with pytest.raises(InvalidRequest, match="1001 images, videos and audios; at most 1000"):
        await prepare(service.preparer, [SMALL] * 1001)


async def test_images_that_are_too_large_together_stop_early(qwen: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images of a few hundred bytes must not take gigabytes before they are refused."""
    area = {"size": {"shortest_edge": 1_000_000, "longest_edge": 1_000_000}}
    preparer, asked = counted(qwen, monkeypatch, mm_processor_kwargs=area)
    files = [png_bytes(Image.new("RGB", (100, 100), (number, 0, 0))) for number in range(12)]
    monkeypatch.setattr("quire.images.MAX_IMAGES_BYTES", 7_000_000)
    with pytest.raises(InvalidRequest, match="at most 7000000 are allowed") as caught:
        await prepare(preparer, files)
    assert caught.value.parameter == "messages"
    assert len(asked) == 4
    assert len(await prepare(preparer, files[:2])) == 2


def huge() -> bytes:
    """A file of 64 kB with as many pixels as are allowed; they take a second to prepare."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack("!I", len(data)) + kind + data + struct.pack("!I", zlib.crc32(kind + data))

    packer = zlib.compressobj(1)
    rows = b"".join(packer.compress(bytes(8193 * 512)) for _ in range(16)) + packer.flush()
    head = chunk(b"IHDR", struct.pack("!IIBBBBB", 8192, 8192, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


async def test_a_process_that_dies_fails_what_it_was_doing_only(service: Service) -> None:
    child = await a_child(service)
    before = child.processor_seconds()
    preparing = asyncio.create_task(prepare(service.preparer, [huge()]))
    await eventually(lambda: child.processor_seconds() > before + 0.05, "it does not begin")
    assert not preparing.done()
    os.kill(child._process.pid, signal.SIGKILL)
    with pytest.raises(InvalidRequest, match="too much memory") as caught:
        await preparing
    assert caught.value.parameter == "messages"
    assert (await prepare(service.preparer, [FILE]))[0].num_tokens == 12


async def a_child(service: Service) -> Any:
    """The process that takes the next image."""
    new = Image.frombytes("RGB", (28, 28), os.urandom(3 * 28 * 28))  # no earlier one is kept for it
    await prepare(service.preparer, [png_bytes(new)])
    child = service.preparer._pools[MediaKind.IMAGE]._idle._queue[-1]
    assert child.alive
    return child


async def test_an_image_that_takes_too_much_is_refused(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    vast = {"size": {"shortest_edge": 10**10, "longest_edge": 10**10}}
    with pytest.raises(InvalidRequest, match="takes too much memory"):
        await prepare(service.preparer, [FILE], vast)
    await a_child(service)
    monkeypatch.setattr(service.preparer._pools[MediaKind.IMAGE], "_timeout_seconds", 0.2)
    with pytest.raises(InvalidRequest, match="takes longer than 10 s to prepare"):
        await prepare(service.preparer, [huge()])


async def test_a_model_without_an_image_processor_reads_text_only(tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    for folder in (tmp_path, tmp_path / "tokenizer.json"):  # GGUF models are a file
        preparer = MediaPreparer(folder, ImageProcessorOptions())
        await preparer.start()
        assert (preparer.placeholders, preparer._pools[MediaKind.IMAGE]._children) == ({}, set())
        with pytest.raises(InvalidRequest, match="This model reads text only: it comes without a processor") as caught:
            await prepare(preparer, [FILE])
        assert caught.value.parameter == "messages"


async def test_a_tokenizer_that_is_in_no_folder_does_not_look_for_images_where_it_was_started(
    qwen: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(qwen)
    with pytest.raises(InvalidRequest, match="it comes without a processor"):
        await prepare(MediaPreparer(None, ImageProcessorOptions()), [FILE])


@pytest.mark.parametrize("module", ["PIL", "transformers"])
async def test_a_service_without_the_packages_says_which(
    qwen: Path, module: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == module else find(name))
    preparer = MediaPreparer(qwen, ImageProcessorOptions())
    await preparer.start()
    with pytest.raises(InvalidRequest, match=r"reads text only: .*installed without quire\[images\]"):
        await prepare(preparer, [FILE])
    assert f"{'pillow' if module == 'PIL' else module} missing; pip install 'quire[images]'" in caplog.text


async def test_images_that_come_too_early_are_not_refused_for_good(qwen: Path) -> None:
    """The service answers calls while it starts; gateways repeat those that it cannot answer yet."""
    with pytest.raises(Unavailable, match="cannot be prepared yet"):
        await prepare(MediaPreparer(qwen, ImageProcessorOptions()), [FILE])


async def test_a_processor_that_cannot_be_loaded_does_not_stop_the_service(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_tokenizer(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text("{")
    preparer = MediaPreparer(tmp_path, ImageProcessorOptions())
    await preparer.start()
    with pytest.raises(InvalidRequest, match="reads text only: its processor could not be started"):
        await prepare(preparer, [FILE])
    assert "images, videos and audio are refused" in caplog.text
    await preparer.close()


def placeable(num_tokens: int, replacement: str) -> PreparedMedium:
    return PreparedMedium(
        MediaKind.IMAGE, replacement, num_tokens, PlacedImage(0, 0, (ImageInput("x", "uint8", (1,), b"x"),))
    )


async def test_texts_and_places_of_images() -> None:
    preparer = MediaPreparer(None, ImageProcessorOptions())
    preparer.use({"marks": {"image": ["<image>", "<image>", 9]}, "mark_ids": {}, "can_prune": False, "fault": ""})
    images = [placeable(2, "[AA]"), placeable(3, "[B,BB]")]
    assert preparer.insert("x<image>y<image>", images) == ("x[AA]y[B,BB]", images)
    assert preparer.insert("<image><image>", images) == ("[AA][B,BB]", images)
    for wrong, count in (("x<image>y", 1), ("<image> <image> <image>", 3), ("", 0)):
        with pytest.raises(InvalidRequest, match=rf"written {count} image placeholders \(<image>\) for 2 images"):
            preparer.insert(wrong, images)
    placed = preparer.place([1, 9, 9, 2, 9, 3, 9, 9, 4], images)  # 3 is a separator
    assert [(image.offset, image.num_tokens) for image in placed] == [(1, 2), (4, 4)]
    assert [image.digest for image in placed] == [each.image.digest for each in images]
    for token_ids in ([1, 9, 9, 9, 9], [9] * 6):
        with pytest.raises(InvalidRequest, match=f"has {token_ids.count(9)} tokens for images, .*instead of 5"):
            preparer.place(token_ids, images)


async def test_a_conversation_has_the_tokens_that_it_has_in_transformers(service: Service) -> None:
    files, images = [FILE, SMALL, SIMILAR], [random_image(60, 40, 1), random_image(28, 28, 3), random_image(60, 40, 2)]
    answer = await service.render(MESSAGES, files, block_size=BLOCK, cache_salt="salt", adapter="adapter")
    rendered = service.reference.tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True, tokenize=False)
    assert answer.text == rendered
    token_ids = list(answer.sequence.token_ids)
    assert token_ids == service.expected(rendered, images)
    placed = to_images(answer.images)
    image_token = service.preparer._token_ids[MediaKind.IMAGE]
    inside = [position for image in placed for position in range(image.offset, image.end)]
    assert inside == [position for position, token in enumerate(token_ids) if token == image_token]
    assert [image.num_tokens for image in placed] == [12, 4, 12]
    assert [image.digest for image in placed] == [each.image.digest for each in await prepare(service.preparer, files)]
    keys = block_keys(token_ids, BLOCK, "salt", contents_of(placed), "adapter")
    assert list(answer.sequence.block_keys) == keys
    assert not set(keys) & set(block_keys(token_ids, BLOCK, "salt", contents_of(placed)))


async def test_conversations_share_the_blocks_before_the_image_in_which_they_differ(service: Service) -> None:
    async def keys(*files: bytes) -> tuple[list[int], list[int]]:
        answer = await service.render(MESSAGES, files, block_size=BLOCK)
        return list(answer.sequence.block_keys), [image.offset // BLOCK for image in answer.images]

    original, first_blocks = await keys(FILE, SMALL, FILE)
    for files, differing in (((SIMILAR, SMALL, FILE), 0), ((FILE, SMALL, SIMILAR), 2)):
        others, _ = await keys(*files)
        begins = first_blocks[differing]
        assert 0 < begins < len(original) - 1
        assert others[:begins] == original[:begins]
        assert not set(others[begins:]) & set(original)
    assert (await keys(FILE, SMALL, FILE))[0] == original


async def test_prompts_with_images_are_not_cut(service: Service) -> None:
    error = await service.refusal(MESSAGES[:1], [FILE, FILE], truncation=tokenizer_pb2.Truncation(num_tokens=9))
    assert error.parameter == "truncate_prompt_tokens"
    assert "cannot be truncated" in error.message
    whole = await service.render(MESSAGES[:1], [FILE, FILE])
    length = len(whole.sequence.token_ids)
    assert await service.render(MESSAGES[:1], [FILE, FILE], max_tokens=length) == whole
    for most in (length - 1, 3):
        error = await service.refusal(MESSAGES[:1], [FILE, FILE], max_tokens=most)
        assert isinstance(error, ContextTooLong)
        assert f"maximum context length is {most} tokens" in error.message


@pytest.mark.parametrize(
    ("content", "count", "words"),
    [
        ([IMAGE, text("What about <|image_pad|>?")], 1, "has written 2 image placeholders (<|image_pad|>) for 1"),
        ([text("What about <|image_pad|>?")], 1, ""),
        ([IMAGE], 2, "has written 1 image placeholders (<|image_pad|>) for 2 images"),
        ([IMAGE, IMAGE], 1, "has written 2 image placeholders (<|image_pad|>) for 1 images"),
        ("no image", 1, "has written 0 image placeholders"),
    ],
)
async def test_images_and_their_places_are_equally_many(service: Service, content: Any, count: int, words: str) -> None:
    if words:
        error = await service.refusal([{"role": "user", "content": content}], [FILE] * count)
        assert error.parameter == "messages"
        assert words in error.message
    else:  # a placeholder written by hand has the image
        answer = await service.render([{"role": "user", "content": content}], [FILE] * count)
        assert [image.num_tokens for image in answer.images] == [12]


async def test_texts_that_have_the_tokens_of_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Aya Vision has another token for the places than for the images."""
    preparer, _ = counted(make_vision_model(tmp_path, "aya_vision"), monkeypatch)
    (image,) = await prepare(preparer, [FILE])
    tokenizer = reference_processor(tmp_path).tokenizer
    written = tokenizer.encode(preparer.insert("<image>", [image])[0], add_special_tokens=False)
    (placed,) = preparer.place(written, [image])
    assert written[placed.offset] == written[placed.end - 1] == preparer._token_ids[MediaKind.IMAGE]
    assert placed.num_tokens > image.num_tokens  # there are separators between tiles
    by_hand = tokenizer.encode("<|IMG_PATCH|>", add_special_tokens=False)
    with pytest.raises(
        InvalidRequest, match=rf"{image.num_tokens + 1} tokens for images, .*instead of {image.num_tokens}"
    ):
        preparer.place([*by_hand, *written], [image])


@pytest.mark.parametrize("interleaves", [False, True])
async def test_templates_that_take_strings(
    service: Service, interleaves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ImageProcessorOptions(interleave_mm_strings=interleaves)
    options = dataclasses.replace(service.running.servicer._options, images=settings)
    monkeypatch.setattr(service.running.servicer, "_options", options)
    conversation = [{"role": "user", "content": [text("A"), IMAGE, text("B"), IMAGE, text("C")]}]
    answer = await service.render(conversation, [FILE, SMALL], chat_template=STRINGS)
    place = "<|vision_start|><|image_pad|><|vision_end|>"  # as the model's own template writes it
    assert answer.text == f"A\n{place}\nB\n{place}\nC" if interleaves else f"{place}\n{place}\nA\nB\nC"
    images = [random_image(60, 40, 1), random_image(28, 28, 3)]
    assert list(answer.sequence.token_ids) == service.expected(answer.text, images)
    assert [image.num_tokens for image in answer.images] == [12, 4]


async def test_the_end_of_a_conversation_goes_on(service: Service) -> None:
    """What ends with an image cannot be continued, what ends with text can."""
    asked = {"role": "user", "content": [IMAGE, text("What is it?")]}
    begun = [asked, {"role": "assistant", "content": [text("It is")]}]
    fields = {"continue_final_message": True, "add_generation_prompt": False}
    answer = await service.render(begun, [FILE], **fields)
    expected = service.reference.tokenizer.apply_chat_template(begun, continue_final_message=True, tokenize=False)
    assert answer.text == expected
    assert list(answer.sequence.token_ids) == service.expected(expected, [random_image(60, 40, 1)])
    for template in ("", STRINGS):
        ended = [{"role": "user", "content": [text("What is this?"), IMAGE]}]
        error = await service.refusal(ended, [FILE], chat_template=template, **fields)
        assert "continue_final_message needs a final message whose content" in error.message


@pytest.mark.parametrize(
    ("file", "fields", "parameter", "words"),
    [
        (b"x", {}, "messages", "cannot be decoded"),
        (b"", {}, "messages", "An image is empty"),
        (FILE, {"image_processor_kwargs_json": b'{"nonsense": 1}'}, "mm_processor_kwargs", "nonsense"),
        (FILE, {"image_processor_kwargs_json": b"{"}, "mm_processor_kwargs", "not valid JSON"),
        (FILE, {"image_processor_kwargs_json": b"[]"}, "mm_processor_kwargs", "wrong JSON type"),
    ],
)
async def test_what_is_wrong_is_named(
    service: Service, file: bytes, fields: dict[str, Any], parameter: str, words: str
) -> None:
    error = await service.refusal(MESSAGES[2:], [file], **fields)
    assert error.parameter == parameter
    assert words in error.message


async def test_settings_of_a_request(service: Service) -> None:
    few = json.dumps({"size": {"shortest_edge": 784, "longest_edge": 784}}).encode()
    (usual,) = (await service.render(MESSAGES[2:], [FILE])).images
    (smaller,) = (await service.render(MESSAGES[2:], [FILE], image_processor_kwargs_json=few)).images
    assert (usual.num_tokens, smaller.num_tokens) == (12, 2)


async def test_embeddings_take_the_places_of_images(service: Service) -> None:
    content = [{"role": "user", "content": [IMAGE, text("or"), IMAGE]}]
    tensors = {"image_grid_thw": saved(torch.tensor([1, 2, 6])), "image_embeds": saved(torch.zeros(3, 8))}
    brought = tokenizer_pb2.ImageEmbeds(index=1, tensors=tensors)
    answer = await service.render(content, [SMALL, b""], image_embeds=[brought])
    first, second = to_images(answer.images)
    assert (first.num_tokens, second.num_tokens) == (4, 3)
    assert [(each.name, each.shape) for each in second.inputs] == [("image_embeds", (3, 8)), ("image_grid_thw", (1, 3))]
    for index, names in ((2, ["image_embeds"]), (1, ["image_grid_thw"]), (1, ["image_embeds", "image_sizes"])):
        wrong = tokenizer_pb2.ImageEmbeds(index=index, tensors=dict.fromkeys(names, b"x"))
        told = await service.refusal(content, [SMALL, b""], image_embeds=[wrong])
        assert f"image_embeds: image {index} of 2 has the tensors" in told.message
