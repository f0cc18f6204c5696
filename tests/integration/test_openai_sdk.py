"""The real OpenAI SDK against a real stack, whose outputs match `transformers`."""

from __future__ import annotations

import enum
import json
import re
import urllib.request
from functools import cache
from typing import Annotated, Any

import openai
import pytest
import torch
import transformers
from pydantic import BaseModel, Field

from tests.support.stack import Stack
from tests.support.waiting import WAIT_SECONDS

pytestmark = pytest.mark.slow

MESSAGES: list[Any] = [{"role": "user", "content": "Hello, world! Grüße, 你好 🎉"}]


@cache
def reference(folder: str) -> tuple[Any, Any]:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.eval(), transformers.AutoTokenizer.from_pretrained(folder)


def greedy(stack: Stack, prompt_ids: list[int], count: int) -> list[int]:
    model, _ = reference(str(stack.model))
    with torch.inference_mode():
        output = model.generate(torch.tensor([prompt_ids]), max_new_tokens=count, do_sample=False, pad_token_id=0)
    ids: list[int] = output[0, len(prompt_ids) :].tolist()
    return ids


@pytest.fixture
def client(stack: Stack) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{stack.url}/v1", api_key="unused", max_retries=0, timeout=60)


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError, match="tiny"):
        client.models.retrieve("some/other")


def test_a_context_that_is_too_long_is_known_by_its_words(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="maximum context length is 1024 tokens") as told:
        client.completions.create(model="tiny", prompt=[5] * 1024)
    assert str(told.value.code) == "400"


def test_chat_equals_transformers(client: openai.OpenAI, stack: Stack) -> None:
    _, tokenizer = reference(str(stack.model))
    prompt = tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True, return_dict=False)
    answer = client.chat.completions.create(
        model="tiny", messages=MESSAGES, temperature=0, max_tokens=32, extra_body={"return_token_ids": True}
    )
    expected = greedy(stack, prompt, 32)
    choice = answer.choices[0]
    assert choice.model_extra and choice.model_extra["token_ids"] == expected
    assert choice.message.content == tokenizer.decode(expected, skip_special_tokens=True)
    assert choice.finish_reason == "length"
    assert answer.usage and (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (len(prompt), 32)


def test_streamed_chat_equals_the_whole(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model="tiny", messages=MESSAGES, temperature=0, max_tokens=40)
    chunks = list(
        client.chat.completions.create(
            model="tiny", messages=MESSAGES, temperature=0, max_tokens=40, stream=True,
            stream_options={"include_usage": True},
        )
    )  # fmt: skip
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"
    assert chunks[-1].usage and whole.usage and chunks[-1].usage.total_tokens == whole.usage.total_tokens


async def test_async_client(stack: Stack) -> None:
    client = openai.AsyncOpenAI(base_url=f"{stack.url}/v1", api_key="unused", max_retries=0, timeout=60)
    stream = await client.completions.create(model="tiny", prompt="abc", temperature=0, max_tokens=16, stream=True)
    streamed = "".join([chunk.choices[0].text async for chunk in stream])
    whole = await client.completions.create(model="tiny", prompt="abc", temperature=0, max_tokens=16)
    assert streamed == whole.choices[0].text
    await client.close()


def test_token_id_prompts_in_a_batch(client: openai.OpenAI, stack: Stack) -> None:
    prompts = [[1, 2, 3], list(range(40, 90)), [200] * 17]
    answer = client.completions.create(
        model="tiny", prompt=prompts, temperature=0, max_tokens=12, extra_body={"return_token_ids": True}
    )
    for choice, prompt in zip(answer.choices, prompts, strict=True):
        assert choice.model_extra and choice.model_extra["token_ids"] == greedy(stack, prompt, 12)


def test_n_choices_differ_and_repeat_with_the_seed(client: openai.OpenAI) -> None:
    def sample() -> list[str]:
        answer = client.completions.create(model="tiny", prompt="abc", n=4, seed=7, temperature=1.0, max_tokens=12)
        assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
        return [choice.text for choice in answer.choices]

    first = sample()
    assert len(set(first)) == 4
    assert sample() == first


def test_stop_string(client: openai.OpenAI) -> None:
    whole = client.completions.create(model="tiny", prompt="abc", temperature=0, max_tokens=40).choices[0].text
    stop = whole[10:13]
    cut = client.completions.create(model="tiny", prompt="abc", temperature=0, max_tokens=40, stop=[stop]).choices[0]
    assert cut.text == whole[: whole.index(stop)]
    assert cut.finish_reason == "stop"
    assert cut.model_extra and cut.model_extra["stop_reason"] == stop


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_tells_what_was_cached(client: openai.OpenAI, stream: bool) -> None:
    prompt = [3 + 7 * number % 500 for number in range(500 + stream)]
    text = client.completions.create(model="tiny", prompt=prompt, temperature=0, max_tokens=16).choices[0].text
    wanted: dict[str, Any] = {
        "model": "tiny", "prompt": prompt, "temperature": 0, "max_tokens": 400, "stop": [text[3:5]]
    }  # fmt: skip
    if stream:
        *chunks, last = client.completions.create(**wanted, stream=True, stream_options={"include_usage": True})
        finish, usage = chunks[-1].choices[0].finish_reason, last.usage
    else:
        answer = client.completions.create(**wanted)
        finish, usage = answer.choices[0].finish_reason, answer.usage
    assert (finish, usage.completion_tokens < 16) == ("stop", True)
    assert usage.prompt_tokens_details.cached_tokens == 496


def test_logprobs_are_those_of_transformers(client: openai.OpenAI, stack: Stack) -> None:
    model, _ = reference(str(stack.model))
    prompt = [5, 6, 7, 8]
    answer = client.completions.create(
        model="tiny", prompt=prompt, temperature=0, max_tokens=6, logprobs=3, extra_body={"return_token_ids": True}
    )
    choice = answer.choices[0]
    assert choice.model_extra and choice.logprobs and choice.logprobs.token_logprobs
    ids = choice.model_extra["token_ids"]
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + ids])).logits[0].log_softmax(-1)
    expected = [logits[len(prompt) - 1 + i, token].item() for i, token in enumerate(ids)]
    assert choice.logprobs.token_logprobs == pytest.approx(expected, abs=1e-3)


def test_echo_with_logprobs_scores_the_prompt(client: openai.OpenAI, stack: Stack) -> None:
    model, tokenizer = reference(str(stack.model))
    text = "score me"
    ids = tokenizer(text)["input_ids"]
    answer = client.completions.create(model="tiny", prompt=text, echo=True, logprobs=1, max_tokens=0)
    scores = answer.choices[0].logprobs
    assert answer.choices[0].text == text
    assert scores and scores.token_logprobs
    with torch.inference_mode():
        logits = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    assert scores.token_logprobs[0] is None
    expected = [logits[i, token].item() for i, token in enumerate(ids[1:])]
    assert scores.token_logprobs[1:] == pytest.approx(expected, abs=1e-3)


def test_errors_are_the_sdks(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="tiny"):
        client.completions.create(model="other", prompt="a")
    with pytest.raises(openai.BadRequestError, match="1024"):
        client.completions.create(model="tiny", prompt=[1] * 2000)
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.completions.create(model="tiny", prompt="a", temperature=3)
    with pytest.raises(openai.BadRequestError, match="vocabulary"):
        client.completions.create(model="tiny", prompt=[9999999])


def test_tokenize_and_back(stack: Stack) -> None:
    def post(path: str, body: dict[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(
            stack.url + path, json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=WAIT_SECONDS) as response:
            answer: dict[str, Any] = json.load(response)
            return answer

    answer = post("/tokenize", {"prompt": "Grüße 🎉"})
    assert answer["count"] == len("Grüße 🎉".encode())
    assert post("/detokenize", {"tokens": answer["tokens"]})["prompt"] == "Grüße 🎉"


@pytest.mark.parametrize("stream", [False, True])
def test_beam_search_equals_transformers(client: openai.OpenAI, stack: Stack, stream: bool) -> None:
    model, _ = reference(str(stack.model))
    prompts = [[5, 6, 7, 8] * 6, [9, 300, 77]]
    found = [
        model.generate(
            torch.tensor([prompt]), num_beams=4, num_return_sequences=3, max_new_tokens=10, do_sample=False,
            pad_token_id=0, length_penalty=0.5,
        )[:, len(prompt) :].tolist()
        for prompt in prompts
    ]  # fmt: skip
    fields: dict[str, Any] = {
        "use_beam_search": True, "best_of": 4, "length_penalty": 0.5, "return_token_ids": True,
    }  # fmt: skip
    answer = client.completions.create(
        model="tiny", prompt=prompts, n=3, max_tokens=10, temperature=0, logprobs=1, extra_body=fields, stream=stream
    )
    chunks: list[Any] = list(answer) if stream else [answer]
    choices = {choice.index: choice for chunk in chunks for choice in chunk.choices}
    assert [choices[index].token_ids for index in range(6)] == [*found[0], *found[1]]
    assert {choice.finish_reason for choice in choices.values()} == {"length"}
    assert all(len(choice.logprobs.token_logprobs) == 10 for choice in choices.values())


def test_beam_search_ends_with_stop_tokens_and_refuses_what_it_cannot_do(client: openai.OpenAI) -> None:
    def search(**fields: Any) -> Any:
        return client.chat.completions.create(
            model="tiny", messages=MESSAGES, n=2, max_tokens=8,
            extra_body={"use_beam_search": True, "return_token_ids": True} | fields,
        )  # fmt: skip

    free: Any = search()
    ending = free.choices[0].token_ids[3]
    ended: Any = search(stop_token_ids=[ending], early_stopping=True)
    assert any(choice.stop_reason == ending and choice.finish_reason == "stop" for choice in ended.choices)
    assert free.usage.completion_tokens == sum(len(choice.token_ids) for choice in free.choices) == 16
    for fields, named in (({"stop": ["x"]}, "stop"), ({"n": 30}, "max-logprobs"), ({"length_penalty": 99}, "length_p")):
        with pytest.raises(openai.BadRequestError, match=named):
            search(**fields)


def test_beam_search_keeps_to_what_the_request_allows(client: openai.OpenAI) -> None:
    """Whatever restricts sampling also restricts the search: token fields, and grammars."""

    def search(**fields: Any) -> list[Any]:
        answer = client.completions.create(
            model="tiny", prompt="A", n=3, max_tokens=6, logprobs=1,
            extra_body={"use_beam_search": True, "return_token_ids": True} | fields,
        )  # fmt: skip
        return list(answer.choices)

    allowed = search(allowed_token_ids=[40, 41, 42], logit_bias={"41": -100})
    assert {token for choice in allowed for token in choice.token_ids} == {40, 42}
    assert all(logprob > -20 for choice in allowed for logprob in choice.logprobs.token_logprobs)
    chosen = search(structured_outputs={"choice": ["yes", "no", "maybe"]})
    assert sorted(choice.text for choice in chosen) == ["maybe", "no", "yes"]
    assert {choice.finish_reason for choice in chosen} == {"stop"}


class Colour(enum.Enum):
    RED = "red"
    GREEN = "grün"


Name = Annotated[str, Field(max_length=8)]


class Pet(BaseModel):
    name: Name
    colour: Colour


class Person(BaseModel):
    name: Name
    age: Annotated[int, Field(ge=0, le=150)]
    pets: Annotated[list[Pet], Field(max_length=2)]
    motto: Name | None


def test_parsed_into_a_model(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model="tiny", messages=MESSAGES, response_format=Person, temperature=1.5, n=3, max_tokens=600
    )
    assert [choice.finish_reason for choice in answer.choices] == ["stop"] * 3
    assert all(isinstance(choice.message.parsed, Person) for choice in answer.choices)


def test_streamed_into_a_model(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model="tiny", messages=MESSAGES, response_format=Person, temperature=1.5, max_tokens=600
    ) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion().choices[0]
    assert {"content.delta", "content.done"} <= kinds
    assert isinstance(final.message.parsed, Person)
    assert final.message.content is not None
    assert Person.model_validate_json(final.message.content) == final.message.parsed


def test_any_object(client: openai.OpenAI) -> None:
    whole: list[str] = []
    for _ in range(10):  # a random model may or may not close its brackets within its tokens
        answer = client.chat.completions.create(
            model="tiny", messages=MESSAGES, response_format={"type": "json_object"}, temperature=1.5, max_tokens=300,
            n=6,
        )  # fmt: skip
        whole += [choice.message.content or "" for choice in answer.choices if choice.finish_reason == "stop"]
        if whole:
            break
    assert whole
    assert all(isinstance(json.loads(text), dict) for text in whole)


@pytest.mark.parametrize("backend", ["guidance", "outlines"])
@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"structured_outputs": {"regex": "[a-f]{3}-[0-9]{2}"}}, "[a-f]{3}-[0-9]{2}"),
        ({"guided_regex": "(ja|nein)!?"}, "(ja|nein)!?"),
        ({"guided_choice": ["blau", "rot", "grün"]}, "blau|rot|grün"),
        ({"guided_json": {"enum": [1, "a", None]}}, r'1|"a"|null'),
    ],
)
def test_texts_of_many_prompts(client: openai.OpenAI, backend: str, fields: dict[str, Any], pattern: str) -> None:
    own = {**fields, "guided_decoding_backend": backend}
    answer = client.completions.create(
        model="tiny", prompt=["A", "B", "C"], n=2, temperature=1.5, max_tokens=30, logprobs=1, extra_body=own
    )
    assert len(answer.choices) == 6
    for choice in answer.choices:
        assert (choice.finish_reason, bool(re.fullmatch(pattern, choice.text))) == ("stop", True), choice.text


@pytest.mark.parametrize("several", [True, False])
def test_a_random_model_calls_tools_whose_arguments_fit(client: openai.OpenAI, several: bool) -> None:
    """The server has no tool parser, so calls are plain JSON."""
    tools = [openai.pydantic_function_tool(Pet, name=name) for name in ("f", "g")]
    answer = client.chat.completions.create(
        model="tiny", messages=MESSAGES, tools=tools, tool_choice="required", parallel_tool_calls=several, n=8,
        temperature=1.5, seed=3, max_tokens=800,
    )  # fmt: skip
    for choice in answer.choices:
        calls = [call for call in choice.message.tool_calls or () if call.type == "function"]
        assert (choice.message.content, choice.finish_reason) == (None, "tool_calls")
        assert len(calls) == 1 or (several and calls)
        for call in calls:
            assert call.function.name in ("f", "g")
            Pet.model_validate_json(call.function.arguments)


def test_a_grammar_is_followed(client: openai.OpenAI) -> None:
    grammar = 'root ::= "[" item ("," item){1,3} "]"\nitem ::= [0-9]{1,3} | root'
    answer = client.chat.completions.create(
        model="tiny", messages=MESSAGES, temperature=1.5, max_tokens=400, extra_body={"guided_grammar": grammar}
    )
    if answer.choices[0].finish_reason == "stop":
        assert re.fullmatch(r"[\d,\[\]]+", answer.choices[0].message.content or "")


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"guided_regex": "(a+)+$"}, "guided_regex", "nests unbounded repetitions"),
        ({"guided_json": '{"items":' * 10_000 + "{}" + "}" * 10_000}, "guided_json", "nests too deeply"),
        ({"guided_json": {"$ref": "#"}}, "guided_json", "no output satisfies it"),
        ({"structured_outputs": {"json": {"maxLength": 10**9}}}, "structured_outputs.json", "maxLength is 1000000000"),
        ({"guided_json": {}, "guided_regex": "a"}, "guided_regex", "leave one of them out"),
        ({"guided_regex": "a", "guided_decoding_backend": "lm-format-enforcer"}, "guided_regex", "hold up every other"),
    ],
)
def test_what_cannot_be_followed(client: openai.OpenAI, fields: dict[str, Any], param: str, message: str) -> None:
    with pytest.raises(openai.BadRequestError, match=message) as told:
        client.completions.create(model="tiny", prompt="A", extra_body=fields)
    assert told.value.param == param
