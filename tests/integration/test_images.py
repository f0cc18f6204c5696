"""A whole stack that serves a vision-language model answers as Transformers does, wherever the images come from."""

from __future__ import annotations

import base64
import functools
import http.server
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from PIL import Image

from tests.support.stack import Stack, start_stack, stop_stack
from tests.support.vision_models import make_vision_model, png_bytes, random_image, reference_generate
from tests.support.vision_models.embeddings import embeddings_of, saved

pytestmark = pytest.mark.slow

ANSWER = 16
IMAGES = {f"{number}.png": random_image(*size, number) for number, size in enumerate(((60, 40), (30, 70), (45, 45)))}
FIRST, SECOND, THIRD = IMAGES
# Texts, and names of images.
QUESTION = ("What is this? ", FIRST, "Tell me more than you know.")
CONVERSATION = (("user", QUESTION), ("assistant", ("It is noise.",)), ("user", (SECOND, THIRD, "And these two?")))
PLAIN = (("user", ("Just text, and more than a block of it.",)),)

Turns = Sequence[tuple[str, Sequence[str]]]


def url(name: str) -> str:
    return f"data:image/png;base64,{base64.b64encode(png_bytes(IMAGES[name])).decode()}"


@dataclass
class Served:
    """A stack, and where its images may come from."""

    stack: Stack
    folder: Path  # with image files
    site: str  # with the same files

    @property
    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.stack.url}/v1", api_key="unused", max_retries=0, timeout=60)

    def ask(self, turns: Turns, images_at: str = "", **fields: Any) -> Any:
        """
        Args:
            images_at: what the URLs of images begin with; empty for images within the request.
        """
        messages: list[Any] = [
            {
                "role": role,
                "content": [
                    {"type": "image_url", "image_url": {"url": f"{images_at}/{each}" if images_at else url(each)}}
                    if each in IMAGES
                    else {"type": "text", "text": each}
                    for each in content
                ],
            }
            for role, content in turns
        ]
        wanted = {"temperature": 0, "max_tokens": ANSWER, "extra_body": {"return_token_ids": True}} | fields
        return self.client.chat.completions.create(model="seer", messages=messages, **wanted)

    def expected(self, turns: Turns) -> tuple[list[int], list[int]]:
        """Token ids of prompt and answer by Transformers."""
        assert self.stack.model
        return reference(self.stack.model, tuple(turns))


@functools.cache
def reference(folder: Path, turns: Turns) -> tuple[list[int], list[int]]:
    messages = [
        {"role": role, "content": [{"type": "image"} if each in IMAGES else {"type": "text", "text": each}
                                   for each in content]}
        for role, content in turns
    ]  # fmt: skip
    images = [IMAGES[each] for _, content in turns for each in content if each in IMAGES]
    return reference_generate(folder, messages, images, ANSWER, torch.float32)


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    for name, image in IMAGES.items():
        (folder / name).write_bytes(png_bytes(image))
    return folder


@pytest.fixture(scope="module")
def site(files: Path) -> Iterator[str]:
    """A web server with the images."""
    handler = functools.partial(QuietHandler, directory=str(files))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        serving.join()


@pytest.fixture(scope="module")
def served(files: Path, site: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """With plain positions; a model with those of images: test_videos.py."""
    model = make_vision_model(tmp_path_factory.mktemp("models"), "llava")
    running = start_stack(
        model, tmp_path_factory.mktemp("stack") / "log", "--dtype", "float32", "--served-model-name", "seer",
        "--max-model-len", "1024", "--kv-cache-memory-bytes", "64M", "--enable-prompt-tokens-details",
        "--allowed-media-domains", "127.0.0.1", "--allowed-local-media-path", str(files),
        "--limit-mm-per-prompt", "image=3", "--enable-mm-embeds",
    )  # fmt: skip
    try:
        running.wait_healthy()
        yield Served(running, files, site)
    finally:
        code = stop_stack(running)
    assert code == 0, running.log.read_text()


def test_answers_are_those_of_transformers_and_found_again(served: Served) -> None:
    for turns in (CONVERSATION, CONVERSATION[:1], PLAIN):
        prompt, expected = served.expected(turns)
        before = 0
        for _ in range(2):
            answer = served.ask(turns)
            (choice,) = answer.choices
            assert (choice.model_extra["token_ids"], choice.finish_reason) == (expected, "length")
            assert answer.usage.prompt_tokens == len(prompt)
            cached = answer.usage.prompt_tokens_details.cached_tokens
            assert cached >= before
            before = cached
        assert before == (len(prompt) - 1) // 16 * 16


def test_another_image_is_another_question(served: Served) -> None:
    other = [("user", tuple(SECOND if each == FIRST else each for each in QUESTION))]
    answers = [served.ask(turns).choices[0].model_extra["token_ids"] for turns in (CONVERSATION[:1], other)]
    assert answers == [served.expected(turns)[1] for turns in (CONVERSATION[:1], other)]
    assert answers[0] != answers[1]


def test_images_from_elsewhere_are_the_same(served: Served) -> None:
    within = served.ask(CONVERSATION)
    for place in (f"file://{served.folder}", served.site):
        answer = served.ask(CONVERSATION, place)
        assert answer.choices[0].model_extra["token_ids"] == within.choices[0].model_extra["token_ids"]
        assert answer.usage.prompt_tokens == within.usage.prompt_tokens
        assert answer.usage.prompt_tokens_details.cached_tokens == (answer.usage.prompt_tokens - 1) // 16 * 16
    chunks = list(served.ask(CONVERSATION, served.site, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == within.choices[0].message.content


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("file:///etc", "is not a readable file in the folder"),
        ("http://localhost:1", "on a host or port that --allowed-media-domains does not allow"),
        ("http://127.0.0.1:1", "cannot be reached"),
    ],
)
def test_images_from_nowhere_are_refused(served: Served, place: str, words: str) -> None:
    with pytest.raises(openai.BadRequestError, match=words):
        served.ask(CONVERSATION, place)


def test_what_is_refused_does_no_harm(served: Served) -> None:
    with pytest.raises(openai.BadRequestError, match="has 4 images; at most 3 are allowed"):
        served.ask([("user", (FIRST, SECOND, THIRD, FIRST))])
    with pytest.raises(openai.BadRequestError, match="maximum context length is 1024 tokens"):
        served.ask([("user", (FIRST, "word " * 1000))])
    assert served.ask(CONVERSATION[:1]).choices[0].model_extra["token_ids"] == served.expected(CONVERSATION[:1])[1]


def test_images_may_come_as_embeddings(served: Served) -> None:
    assert served.stack.model
    embeds = embeddings_of(served.stack.model, IMAGES[FIRST])["image_embeds"]

    def ask(tensor: torch.Tensor) -> Any:
        brought = {"type": "image_embeds", "image_embeds": base64.b64encode(saved(tensor)).decode(), "uuid": FIRST}
        texts = [{"type": "text", "text": QUESTION[0]}, {"type": "text", "text": QUESTION[2]}]
        messages: Any = [{"role": "user", "content": [texts[0], brought, texts[1]]}]
        return served.client.chat.completions.create(
            model="seer", messages=messages, temperature=0, max_tokens=ANSWER, extra_body={"return_token_ids": True}
        )

    prompt, expected = served.expected(CONVERSATION[:1])
    answer = ask(embeds)
    assert answer.choices[0].model_extra["token_ids"] == expected
    assert answer.usage.prompt_tokens == len(prompt)
    with pytest.raises(openai.BadRequestError, match="the model takes float32"):
        ask(embeds[:, 1:].contiguous())
    with pytest.raises(openai.BadRequestError, match="do not follow each other row by row"):
        ask(embeds[:, 1:])


def test_large_photos_are_made_small(served: Served) -> None:
    """As cameras take them: a JPEG file of megapixels, to be turned upright."""
    photo, exif = random_image(48, 36, 7).resize((1600, 1200), Image.Resampling.BICUBIC), Image.Exif()
    exif[0x0112] = 6
    file = served.folder / "photo.jpeg"
    photo.save(file, "JPEG", exif=exif)
    upright = Image.open(file).convert("RGB").transpose(Image.Transpose.ROTATE_270)
    said = {"type": "text", "text": "Who took this?"}
    messages: Any = [{"role": "user", "content": [{"type": "image"}, said]}]
    assert served.stack.model
    prompt, expected = reference_generate(served.stack.model, messages, [upright], ANSWER, torch.float32)
    messages = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": f"file://{file}"}}, said]}]
    answer: Any = served.client.chat.completions.create(
        model="seer", messages=messages, temperature=0, max_tokens=ANSWER, extra_body={"return_token_ids": True}
    )
    assert answer.choices[0].model_extra["token_ids"] == expected
    assert answer.usage.prompt_tokens == len(prompt)
