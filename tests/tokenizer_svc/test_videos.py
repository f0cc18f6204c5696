"""Videos of conversations: prepared once, apart from images, and found at their places among the tokens."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio

from quire.block_hash import block_keys
from quire.errors import InvalidRequest, QuireError, StartupError
from quire.images import contents_of
from quire.media import MediaKind
from quire.options.multimodal import ImageProcessorOptions
from quire.options.tokenizer import TokenizerOptions
from quire.rpc.images import to_images
from quire.rpc.status import from_rpc_error
from quire.v1 import tokenizer_pb2, tokenizer_pb2_grpc
from tests.support.films import film
from tests.support.gateway_stack import RunningTokenizer, running_tokenizer
from tests.support.media_preparers import in_this_process
from tests.support.vision_models import make_vision_model, png_bytes, random_frames, random_image
from tests.support.waiting import WAIT_SECONDS
from tokenizer_svc.child_pool import ChildTooSlow
from tokenizer_svc.media import MediaPreparer, MediaSettings, Medium

pytestmark = pytest.mark.asyncio(loop_scope="module")

FILM, OTHER = (film(random_frames(96, 64, 8, seed)) for seed in (1, 2))
PICTURE = png_bytes(random_image(60, 40, 1))
VIDEO, IMAGE = {"type": "video"}, {"type": "image"}
NONE = MediaSettings({}, {})
STRINGS = "{% for message in messages %}{{ message.content }}{% endfor %}"


def text(said: str) -> dict[str, str]:
    return {"type": "text", "text": said}


def of_film(*files: bytes) -> tokenizer_pb2.Video:
    return tokenizer_pb2.Video(files=files)


@dataclass
class Service:
    """A tokenizer service of a model that reads videos."""

    stub: tokenizer_pb2_grpc.TokenizerServiceStub
    running: RunningTokenizer

    @property
    def preparer(self) -> MediaPreparer:
        return self.running.servicer._media

    async def render(self, content: Sequence[Any], **fields: Any) -> tokenizer_pb2.RenderChatResponse:
        messages = json.dumps([{"role": "user", "content": content}]).encode()
        try:
            return await self.stub.RenderChat(  # type: ignore[no-any-return]
                tokenizer_pb2.RenderChatRequest(messages_json=messages, **fields), timeout=WAIT_SECONDS
            )
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from None

    async def refusal(self, content: Sequence[Any], **fields: Any) -> QuireError:
        with pytest.raises(InvalidRequest) as caught:
            await self.render(content, **fields)
        return caught.value


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_vision_model(tmp_path_factory.mktemp("qwen"), "qwen2_5_vl")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(qwen: Path) -> AsyncIterator[Service]:
    images = ImageProcessorOptions(media_io_kwargs={"video": {"num_frames": 4}})
    options = TokenizerOptions(trust_request_chat_template=True, images=images)
    async with (
        running_tokenizer(qwen, tokenizer_options=options) as running,
        grpc.aio.insecure_channel(f"127.0.0.1:{running.port}") as channel,
    ):
        yield Service(tokenizer_pb2_grpc.TokenizerServiceStub(channel), running)


async def test_their_process_is_started_ahead_of_the_first_one(service: Service) -> None:
    await service.preparer.prepare_others()
    assert {kind: len(pool._children) for kind, pool in service.preparer._pools.items()} == {
        MediaKind.IMAGE: 1, MediaKind.VIDEO: 1, MediaKind.AUDIO: 0,
    }  # fmt: skip
    assert not service.preparer._splitter._pool._children


async def test_places_among_images(service: Service) -> None:
    """Whatever the order in which kinds come in the message."""
    content = [text("A"), VIDEO, text("B"), IMAGE, VIDEO, text("C")]
    answer = await service.render(content, images=[PICTURE], videos=[of_film(FILM), of_film(OTHER)], block_size=4)
    token_ids, placed = list(answer.sequence.token_ids), to_images(answer.images)
    kinds = service.preparer._token_ids
    expected = [kinds[MediaKind.VIDEO], kinds[MediaKind.IMAGE], kinds[MediaKind.VIDEO]]
    assert [set(token_ids[image.offset : image.end]) for image in placed] == [{token} for token in expected]
    assert placed[0].num_tokens == placed[2].num_tokens > placed[1].num_tokens > 0
    inside = [place for image in placed for place in range(image.offset, image.end)]
    assert inside == [place for place, token in enumerate(token_ids) if token in kinds.values()]
    assert len({image.digest for image in placed}) == 3
    assert list(answer.sequence.block_keys) == block_keys(token_ids, 4, "", contents_of(placed))


async def test_videos_are_prepared_once_for_the_same_frames(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    pool, asked = service.preparer._pools[MediaKind.VIDEO], []
    ask = pool.ask

    async def note(message: Any) -> Any:
        asked.append(message.fields["reading"])
        return await ask(message)

    monkeypatch.setattr(pool, "ask", note)
    new = of_film(film(random_frames(96, 64, 8, 9)))
    counts = []
    for reading in ({}, {}, {"video": {"num_frames": 2}}, {"video": {"num_frames": 2}}, {"video": {"num_frames": 4}}):
        answer = await service.render([VIDEO], videos=[new], media_io_kwargs_json=json.dumps(reading).encode())
        counts.append(answer.images[0].num_tokens)
    assert counts[0] == counts[1] == counts[4] == 2 * counts[2] == 2 * counts[3]
    assert asked == [{"num_frames": 4}, {"num_frames": 2}]


async def test_images_do_not_wait_for_videos(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = asyncio.Event()

    async def never(message: Any) -> Any:
        waiting.set()
        await asyncio.sleep(WAIT_SECONDS)

    monkeypatch.setattr(service.preparer._pools[MediaKind.VIDEO], "ask", never)
    slow = asyncio.create_task(service.render([VIDEO], videos=[of_film(film(random_frames(96, 64, 2, 7)))]))
    await asyncio.wait_for(waiting.wait(), WAIT_SECONDS)
    answer = await service.render([IMAGE], images=[png_bytes(random_image(28, 28, 77))])
    assert answer.images[0].num_tokens == 4
    assert not slow.done()
    slow.cancel()


async def test_a_video_that_takes_too_long(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    async def too_slow(message: Any) -> Any:
        raise ChildTooSlow

    monkeypatch.setattr(service.preparer._pools[MediaKind.VIDEO], "ask", too_slow)
    error = await service.refusal([VIDEO], videos=[of_film(film(random_frames(96, 64, 2, 8)))])
    assert "A video takes longer than 30 s to prepare. Send a smaller one." in error.message


@pytest.mark.parametrize("interleaves", [False, True])
async def test_templates_that_take_strings(service: Service, interleaves: bool, monkeypatch: Any) -> None:
    settings = ImageProcessorOptions(interleave_mm_strings=interleaves)
    options = dataclasses.replace(service.running.servicer._options, images=settings)
    monkeypatch.setattr(service.running.servicer, "_options", options)
    content = [text("A"), VIDEO, text("B"), IMAGE]
    answer = await service.render(content, images=[PICTURE], videos=[of_film(FILM)], chat_template=STRINGS)
    video, image = (f"<|vision_start|><|{kind}_pad|><|vision_end|>" for kind in ("video", "image"))
    assert answer.text == ("\n".join(("A", video, "B", image)) if interleaves else "\n".join((video, image, "A", "B")))
    assert len(answer.images) == 2


@pytest.mark.parametrize(
    ("content", "files", "fields", "words"),
    [
        ([VIDEO], [FILM, FILM], {}, "has written 1 video placeholders (<|video_pad|>) for 2 videos"),
        ([text("<|video_pad|>"), VIDEO], [FILM], {}, "has written 2 video placeholders"),
        ([VIDEO], [b""], {}, "A video is empty"),
        ([VIDEO], [b"no film"], {}, "not in a known format"),
        ([VIDEO], [FILM], {"media_io_kwargs_json": b'{"video": {"frames": 1}}'}, "Did you mean num_frames?"),
        ([VIDEO], [FILM], {"media_io_kwargs_json": b"[]"}, "media_io_kwargs"),
        ([VIDEO], [FILM], {"image_processor_kwargs_json": b'{"crop": 1}'}, "'crop' is no setting for videos"),
    ],
)
async def test_what_is_refused(
    service: Service, content: Sequence[Any], files: Sequence[bytes], fields: Mapping[str, Any], words: str
) -> None:
    error = await service.refusal(content, videos=[of_film(file) for file in files], **fields)
    assert words in error.message


async def test_a_model_that_reads_images_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    preparer = MediaPreparer(make_vision_model(tmp_path, "llava"), ImageProcessorOptions())
    await in_this_process(preparer, monkeypatch).start()
    with pytest.raises(InvalidRequest, match="This model reads no videos"):
        await preparer.prepare([Medium(MediaKind.VIDEO, (FILM,))], NONE)
    assert await preparer.prepare([Medium(MediaKind.IMAGE, (PICTURE,))], NONE)


async def test_videos_that_cannot_be_pruned(tmp_path: Path, qwen: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither does the service start as if they were, nor where others are."""
    for family in ("llava", "qwen3_vl"):
        preparer = MediaPreparer(
            make_vision_model(tmp_path / family, family), ImageProcessorOptions(video_pruning_rate=0.5)
        )
        with pytest.raises(StartupError, match=r"--video-pruning-rate 0\.5: this model's videos cannot be pruned"):
            await in_this_process(preparer, monkeypatch).start()
    with pytest.raises(StartupError, match="cannot be pruned"):  # a model that reads text only
        await MediaPreparer(None, ImageProcessorOptions(video_pruning_rate=0.5)).start()
    preparer = in_this_process(MediaPreparer(qwen, ImageProcessorOptions(video_pruning_rate=0.5)), monkeypatch)
    await preparer.start()
    (pruned,) = await preparer.prepare([Medium(MediaKind.VIDEO, (FILM,))], NONE)
    grid = next(each for each in pruned.image.inputs if each.name == "image_grid_thw")
    frames, rows, columns = memoryview(grid.data).cast("q").tolist()
    assert pruned.num_tokens == frames * rows * columns // 4 // 2
