"""`pydantic-ai`: an agent that answers, streams, gives objects, and calls tools."""

from __future__ import annotations

import asyncio

import pydantic
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.settings import ModelSettings


class Person(pydantic.BaseModel):
    """A person's name and age."""

    name: str
    age: int


model = OpenAIChatModel("quire-demo", settings=ModelSettings(temperature=0, max_tokens=200))
PERSON = "Write JSON with the fields name, age: Maria, 31."


async def text_whole_and_streamed() -> None:
    agent = Agent(model)
    result = await agent.run("What is 17 + 25?")
    assert result.output == "17 + 25 = 42."
    again = await agent.run("What is 3 + 4?", message_history=result.all_messages())
    assert again.output == "3 + 4 = 7."
    async with agent.run_stream("What is 17 + 25?") as stream:
        pieces = [piece async for piece in stream.stream_text(delta=True, debounce_by=None)]
    assert "".join(pieces) == "17 + 25 = 42."


async def objects_by_a_schema() -> None:
    result = await Agent(model, output_type=NativeOutput(Person)).run(PERSON)
    assert result.output == Person(name="Maria", age=31)


async def objects_by_a_tool() -> None:
    agent = Agent(model, output_type=Person)
    assert (await agent.run(PERSON)).output == Person(name="Maria", age=31)
    async with agent.run_stream(PERSON) as stream:
        objects = [each async for each in stream.stream_output(debounce_by=None)]
    assert objects[-1] == Person(name="Maria", age=31)


async def tools_are_called_and_answered_from() -> None:
    agent = Agent(model)

    @agent.tool_plain
    def get_weather(city: str) -> str:
        """Tell the weather of a city."""
        assert city == "Rome"
        return '{"temperature": 21, "sky": "sunny"}'  # spaced as the model knows it

    result = await agent.run("What is the weather in Rome?")
    assert len(result.all_messages()) == 4  # question, call, result, answer
    assert "sunny" in result.output


async def main() -> None:
    await text_whole_and_streamed()
    await objects_by_a_schema()
    await objects_by_a_tool()
    await tools_are_called_and_answered_from()


if __name__ == "__main__":
    asyncio.run(main())
