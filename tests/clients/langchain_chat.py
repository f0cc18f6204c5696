"""`langchain-openai`: chats, streams, chains, batches, `with_structured_output`, tools."""

from __future__ import annotations

import pydantic
from langchain_core.messages import HumanMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI

MODEL = "quire-demo"
PERSON = "Write JSON with the fields name, age: Maria, 31."
llm = ChatOpenAI(model=MODEL, temperature=0, stream_usage=True)


class Person(pydantic.BaseModel):
    """A person's name and age."""

    name: str
    age: int


@tool
def get_weather(city: str) -> dict[str, object]:
    """Tell the weather of a city."""
    return {"temperature": 21, "sky": "sunny"}


@tool
def send_mail(to: str) -> str:
    """Send a mail to somebody."""
    return f"sent to {to}"


def chains_and_batches() -> None:
    chain = ChatPromptTemplate.from_messages([("user", "What is {first} + {second}?")]) | llm | StrOutputParser()
    assert chain.invoke({"first": 17, "second": 25}) == "17 + 25 = 42."
    assert chain.batch([{"first": 3, "second": 4}, {"first": 5, "second": 6}]) == ["3 + 4 = 7.", "5 + 6 = 11."]
    assert "".join(chain.stream({"first": 17, "second": 25})) == "17 + 25 = 42."


def usage_comes_with_the_stream() -> None:
    whole = None
    for chunk in llm.stream("What is 17 + 25?"):
        whole = chunk if whole is None else whole + chunk
    assert whole is not None
    assert whole.usage_metadata["output_tokens"] > 0
    assert whole.response_metadata["finish_reason"] == "stop"


def completions() -> None:
    assert len(OpenAI(model=MODEL, temperature=0, max_tokens=8).invoke("17 + 25 =")) > 0


def structured_output() -> None:
    for method in ("json_schema", "json_mode", "function_calling"):
        assert llm.with_structured_output(Person, method=method).invoke(PERSON) == Person(name="Maria", age=31), method


def tools_whole_and_streamed() -> None:
    for choice in ("auto", "any", "get_weather"):
        bound = llm.bind_tools([get_weather, send_mail], tool_choice=choice)
        [call] = bound.invoke("What is the weather in Rome?").tool_calls
        assert (call["name"], call["args"]) == ("get_weather", {"city": "Rome"}), choice
        whole = None
        for chunk in bound.stream("What is the weather in Rome?"):
            whole = chunk if whole is None else whole + chunk
        assert whole is not None
        assert [(each["name"], each["args"]) for each in whole.tool_calls] == [(call["name"], call["args"])], choice


def it_goes_on_from_the_result() -> None:
    bound = llm.bind_tools([get_weather])
    messages = [HumanMessage("What is the weather in Rome?")]
    messages.append(bound.invoke(messages))
    messages += [get_weather.invoke(call) for call in messages[-1].tool_calls]
    answer = bound.invoke(messages)
    assert "sunny" in answer.content
    assert not answer.tool_calls


if __name__ == "__main__":
    chains_and_batches()
    usage_comes_with_the_stream()
    completions()
    structured_output()
    tools_whole_and_streamed()
    it_goes_on_from_the_result()
