"""`openai`, the blocking client: chats, completions, streams, structured output, tools, errors."""

from __future__ import annotations

import itertools

import openai
import pydantic
import pytest

client = openai.OpenAI()  # OPENAI_BASE_URL and OPENAI_API_KEY, as for every script of this folder
MODEL = client.models.list().data[0].id


class Person(pydantic.BaseModel):
    name: str
    age: int


PERSON = [{"role": "user", "content": "Write JSON with the fields name, age: Maria, 31."}]
SUM = [{"role": "user", "content": "What is 17 + 25?"}]


def chats_and_completions() -> None:
    answer = client.chat.completions.create(model=MODEL, messages=SUM, temperature=0.1, seed=1, n=2, logprobs=True)
    assert [choice.message.content for choice in answer.choices] == ["17 + 25 = 42."] * 2
    assert "".join(token.token for token in answer.choices[0].logprobs.content).startswith("17 + 25 = 42.")
    text = client.completions.create(model=MODEL, prompt=["17 + 25", "3 + 4"], max_tokens=4, echo=True, logprobs=1)
    assert [choice.index for choice in text.choices] == [0, 1]
    assert text.choices[0].text.startswith("17 + 25")
    assert text.choices[0].logprobs.token_logprobs[0] is None


def a_stream_is_the_whole_in_pieces() -> None:
    usage = {"include_usage": True}
    with client.chat.completions.create(
        model=MODEL, messages=SUM, temperature=0, stream=True, stream_options=usage
    ) as stream:
        chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "17 + 25 = 42."
    assert chunks[-1].usage.total_tokens > chunks[-1].usage.completion_tokens > 0


def the_helper_makes_a_whole_of_a_stream() -> None:
    with client.chat.completions.stream(model=MODEL, messages=PERSON, temperature=0, response_format=Person) as stream:
        events = [event.type for event in stream]
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= set(events), events
    assert final.choices[0].message.parsed == Person(name="Maria", age=31)
    assert final.choices[0].finish_reason == "stop"


def answers_are_models_of_pydantic() -> None:
    for completions in (client.chat.completions, client.beta.chat.completions):
        answer = completions.parse(model=MODEL, messages=PERSON, temperature=0, response_format=Person)
        assert answer.choices[0].message.parsed == Person(name="Maria", age=31)


def tools_are_called() -> None:
    class GetWeather(pydantic.BaseModel):
        """Tell the weather of a city."""

        city: str

    fields = {
        "model": MODEL, "messages": [{"role": "user", "content": "What is the weather in Rome?"}], "temperature": 0,
        "tools": [openai.pydantic_function_tool(GetWeather)],
    }  # fmt: skip
    named = {"type": "function", "function": {"name": "GetWeather"}}
    for choice, interval in itertools.product(("auto", "required", named), (1, 1000)):  # in pieces, and all but at once
        with client.chat.completions.stream(
            tool_choice=choice, extra_body={"stream_interval": interval}, **fields
        ) as stream:
            done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
        whole = client.chat.completions.parse(tool_choice=choice, **fields)
        [call] = whole.choices[0].message.tool_calls
        assert call.function.parsed_arguments == GetWeather(city="Rome")
        assert [event.arguments for event in done] == [call.function.arguments]


def responses_are_answers_too() -> None:
    whole = client.responses.create(model=MODEL, input="What is 17 + 25?", temperature=0)
    assert (whole.output_text, whole.status) == ("17 + 25 = 42.", "completed")
    with client.responses.stream(model=MODEL, input="What is 17 + 25?", temperature=0) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "17 + 25 = 42."
    assert (final.output_text, final.usage) == (whole.output_text, whole.usage)
    parsed = client.responses.parse(model=MODEL, input=PERSON[0]["content"], temperature=0, text_format=Person)
    assert parsed.output_parsed == Person(name="Maria", age=31)
    cut = client.responses.create(model=MODEL, input="What is 17 + 25?", max_output_tokens=2)
    assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")


def responses_call_tools() -> None:
    class GetWeather(pydantic.BaseModel):
        """Tell the weather of a city."""

        city: str

    asked = [{"role": "user", "content": "What is the weather in Rome?"}]
    tools = [openai.pydantic_function_tool(GetWeather)["function"] | {"type": "function"}]
    found = client.responses.parse(model=MODEL, input=asked, tools=tools, temperature=0)
    [call] = [item for item in found.output if item.type == "function_call"]
    assert call.parsed_arguments == GetWeather(city="Rome") or call.parsed_arguments == {"city": "Rome"}
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "18 degrees"}
    told = [*asked, *[item.model_dump(exclude={"parsed_arguments"}) for item in found.output], result]
    assert client.responses.create(model=MODEL, input=told, tools=tools, temperature=0).output_text


def agents_send_what_openai_runs() -> None:
    """As Codex does: a custom tool with a grammar, and searches of the web, which are left out."""
    patch = {
        "type": "custom", "name": "apply_patch", "description": "Apply a patch.",
        "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"},
    }  # fmt: skip
    tools, choice = [patch, {"type": "web_search"}], {"type": "custom", "name": "apply_patch"}
    asked = [{"role": "user", "content": "Write hello to a file."}]
    fields = {"model": MODEL, "tools": tools, "temperature": 0, "max_output_tokens": 64}
    whole = client.responses.create(input=asked, tool_choice=choice, **fields)
    call = whole.output[-1]
    assert (call.type, call.name) == ("custom_tool_call", "apply_patch")
    assert [tool.type for tool in whole.tools] == ["custom"]
    with client.responses.stream(input=asked, tool_choice=choice, **fields) as stream:
        events = list(stream)
    told = [event.delta for event in events if event.type == "response.custom_tool_call_input.delta"]
    assert "".join(told) == call.input
    result = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "done"}
    file = {"type": "input_file", "filename": "a.txt", "file_data": "data:text/plain;base64,aGVsbG8="}
    read = {"role": "user", "content": [{"type": "input_text", "text": "Read this."}, file]}
    assert client.responses.create(input=[*asked, call.model_dump(), result, read], **fields).status
    with pytest.raises(openai.BadRequestError, match="web_search"):
        client.responses.create(input=asked, tool_choice={"type": "web_search"}, **fields)


def responses_are_kept() -> None:
    first = client.responses.create(model=MODEL, input="What is 17 + 25?", temperature=0)
    assert client.responses.retrieve(first.id) == first
    going_on = client.responses.create(model=MODEL, input="What is 3 + 4?", previous_response_id=first.id)
    assert going_on.usage.input_tokens > first.usage.total_tokens
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)


def responses_go_on_in_the_background() -> None:
    started = client.responses.create(model=MODEL, input="What is 17 + 25?", temperature=0, background=True)
    with client.responses.retrieve(started.id, stream=True) as stream:
        events = list(stream)
    assert events[-1].type == "response.completed"
    assert client.responses.retrieve(started.id) == events[-1].response
    with client.responses.stream(response_id=started.id, starting_after=4) as rest:
        assert [event.sequence_number for event in rest] == [event.sequence_number for event in events[5:]]
        assert rest.get_final_response().output_text == "17 + 25 = 42."
    with client.responses.stream(model=MODEL, input="Count.", background=True, extra_body={"ignore_eos": True}) as long:
        created = next(iter(long))
        cancelled = client.responses.cancel(created.response.id)
        assert cancelled.status in ("cancelled", "incomplete")  # which is a matter of time


def an_answer_that_is_cut_off_is_told() -> None:
    with pytest.raises(openai.LengthFinishReasonError) as told:
        client.chat.completions.parse(model=MODEL, messages=PERSON, temperature=0, response_format=Person, max_tokens=3)
    assert told.value.completion.usage.completion_tokens == 3


def errors_have_the_sdks_classes() -> None:
    for kind, call in (
        (openai.NotFoundError, lambda: client.models.retrieve("no-such-model")),
        (openai.NotFoundError, lambda: client.chat.completions.create(model="no-such-model", messages=SUM)),
        (openai.BadRequestError, lambda: client.chat.completions.create(model=MODEL, messages=SUM, temperature=-1)),
        (openai.BadRequestError, lambda: client.completions.create(model=MODEL, prompt=[5] * 9000)),
    ):
        with pytest.raises(kind) as told:
            call()
        assert told.value.body["message"]


if __name__ == "__main__":
    chats_and_completions()
    a_stream_is_the_whole_in_pieces()
    the_helper_makes_a_whole_of_a_stream()
    answers_are_models_of_pydantic()
    tools_are_called()
    responses_are_answers_too()
    responses_call_tools()
    agents_send_what_openai_runs()
    responses_are_kept()
    responses_go_on_in_the_background()
    an_answer_that_is_cut_off_is_told()
    errors_have_the_sdks_classes()
