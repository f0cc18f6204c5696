"""`instructor`: models of pydantic by tools, by a schema and by JSON mode, and partial ones while they are written."""

from __future__ import annotations

import instructor
import openai
import pydantic


class Person(pydantic.BaseModel):
    """A person's name and age."""

    name: str
    age: int


QUESTION = [{"role": "user", "content": "Write JSON with the fields name, age: Maria, 31."}]
FIELDS = {"model": "quire-demo", "messages": QUESTION, "temperature": 0, "max_retries": 0}
MARIA = {"name": "Maria", "age": 31}


def by_each_way(mode: instructor.Mode) -> None:
    client = instructor.from_openai(openai.OpenAI(), mode=mode)
    assert client.chat.completions.create(response_model=Person, **FIELDS).model_dump() == MARIA
    person, answer = client.chat.completions.create_with_completion(response_model=Person, **FIELDS)
    assert (person.model_dump(), answer.choices[0].finish_reason) == (MARIA, "stop")


def growing_as_it_is_written(mode: instructor.Mode) -> None:
    client = instructor.from_openai(openai.OpenAI(), mode=mode)
    lengths = []
    for _ in range(5):
        seen = list(client.chat.completions.create_partial(response_model=Person, **FIELDS))
        assert seen[-1].model_dump() == MARIA
        lengths.append(len(seen))
    # What is written within ten milliseconds comes together: on a machine that was held up, even a whole answer.
    assert max(lengths) > 1


if __name__ == "__main__":
    for each in (
        instructor.Mode.TOOLS,
        instructor.Mode.TOOLS_STRICT,
        instructor.Mode.JSON_SCHEMA,
        instructor.Mode.JSON,
    ):
        by_each_way(each)
    for each in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
        growing_as_it_is_written(each)
