"""`openai`, the asynchronous client: many requests at once, streams, a stream that is left."""

from __future__ import annotations

import asyncio

import openai
import pydantic


class Person(pydantic.BaseModel):
    name: str
    age: int


PERSON = [{"role": "user", "content": "Write JSON with the fields name, age: Maria, 31."}]


async def many_at_once(client: openai.AsyncOpenAI, model: str) -> None:
    sums = [(first, second) for first in range(10, 14) for second in range(20, 24)]
    answers = await asyncio.gather(
        *(
            client.chat.completions.create(
                model=model, temperature=0, messages=[{"role": "user", "content": f"What is {first} + {second}?"}]
            )
            for first, second in sums
        )
    )
    texts = [answer.choices[0].message.content for answer in answers]
    right = [
        text == f"{first} + {second} = {first + second}." for text, (first, second) in zip(texts, sums, strict=True)
    ]
    assert sum(right) >= 15, texts  # it adds 99.7 % of such sums


async def streams(client: openai.AsyncOpenAI, model: str) -> None:
    async with client.chat.completions.stream(
        model=model, messages=PERSON, temperature=0, response_format=Person
    ) as stream:
        pieces = [event.delta async for event in stream if event.type == "content.delta"]
        final = (await stream.get_final_completion()).choices[0].message
    assert "".join(pieces) == final.content
    assert final.parsed == Person(name="Maria", age=31)


async def a_stream_that_is_left(client: openai.AsyncOpenAI, model: str) -> None:
    stream = await client.completions.create(
        model=model, prompt="Once", max_tokens=1500, stream=True, extra_body={"ignore_eos": True}
    )
    async for _ in stream:
        break
    await stream.close()
    answer = await client.beta.chat.completions.parse(
        model=model, messages=PERSON, temperature=0, response_format=Person
    )
    assert answer.choices[0].message.parsed == Person(name="Maria", age=31)


async def main() -> None:
    async with openai.AsyncOpenAI() as client:
        model = (await client.models.list()).data[0].id
        await many_at_once(client, model)
        await streams(client, model)
        await a_stream_that_is_left(client, model)


if __name__ == "__main__":
    asyncio.run(main())
