"""Tool calls constrained to their schemas, in every family: whatever the grammar allows is parsed as a valid call."""

from __future__ import annotations

import json
import random
from functools import cache
from typing import Any

import numpy as np
import pytest

from gateway.answers.collecting import CollectedChoice
from gateway.answers.context import AnswerContext
from gateway.answers.deltas import ChoiceUpdate, Content, Delta, Finish, FinishReason
from gateway.answers.parser import ParserChain
from gateway.endpoints.body import decode_json
from gateway.protocol.chat import ChatCompletionRequest
from gateway.requests.call_constraint import answer_constraint
from gateway.requests.constraint import NamedConstraint, constraint_of
from gateway.requests.tools import ToolUse, tool_use
from gateway.tool_parsers import TOOL_PARSERS
from gateway.tool_parsers.base import ToolParser
from gateway.tool_parsers.tagged_json import Hermes
from quire.errors import InvalidRequest
from quire.options.tools import ToolOptions
from quire.structured.base import Form, Grammar, Matcher, mask_words
from quire.structured.guidance import GuidanceBackend
from tests.support.grammars import VOCABULARY_SIZE, spell, text_of, vocabulary
from tests.support.parser_classes import parser_class
from tests.support.tool_formats import ONE_OF_EACH_FORMAT, Call, Turn, render

WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 8}, "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "unit": {"$ref": "#/$defs/unit"},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
    "$defs": {"unit": {"enum": ["C", "F"]}},
}  # fmt: skip
RIGHT, WRONG = '{"city": "Rome", "days": 3}', '{"city": "Rome", "days": 33}'


class Unwritten(Hermes):
    """A parser, as a plugin may provide, that does not define how calls are written."""

    @classmethod
    def syntax(cls, name: str) -> None:
        return None


OPTIONS = ToolOptions(tool_call_parser="hermes", enable_auto_tool_choice=True)
NAMED = {"type": "function", "function": {"name": "get_weather"}}
HERMES = '<tool_call>\n{{"name": "{}", "arguments": {}}}\n</tool_call>'


def function(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **fields}}


def tools(strict: bool = False) -> list[dict[str, Any]]:
    return [function("get_weather", parameters=WEATHER, strict=strict), function("now")]


def parser_of(family: str) -> type[ToolParser] | None:
    if family == "unwritten":
        return Unwritten
    found: Any = parser_class(TOOL_PARSERS, family) if family else None
    return found


def written(family: str, arguments: str) -> str:
    """A get_weather call in the family's form, with JSON's double quotes for strings in Python calls."""
    text = render(family, Turn("", (Call("get_weather", json.loads(arguments)),)))
    return text.lstrip().replace("'", '"')


def asked(family: str, options: ToolOptions = OPTIONS, **fields: Any) -> tuple[ToolUse, NamedConstraint | None]:
    """How a request uses tools, and the constraint on its answer."""
    body = {"messages": [{"role": "user", "content": "A"}], "tools": tools(), **fields}
    request = decode_json(json.dumps(body).encode(), ChatCompletionRequest)
    use = tool_use(request, parser_of(family), options)
    return use, answer_constraint(use, constraint_of(request))


@cache
def backend() -> GuidanceBackend:
    return GuidanceBackend(vocabulary())


def grammar_of(constraint: NamedConstraint | None) -> Grammar:
    assert constraint is not None
    return backend().read(backend().compile(constraint.asked.request))


def takes(grammar: Grammar, text: str) -> bool:
    matcher, token_ids = grammar.matcher(), spell(text)
    return matcher.accept(token_ids) == len(token_ids) and matcher.is_complete


def walk(matcher: Matcher, choose: random.Random) -> str | None:
    """A random text that the matcher allows; None if it does not end within 400 tokens."""
    token_ids: list[int] = []
    row = np.empty(mask_words(VOCABULARY_SIZE), np.int32)
    while not matcher.is_stopped and len(token_ids) < 400:
        matcher.fill(row)
        may_follow = np.nonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))[0]
        if matcher.is_complete and (not len(may_follow) or choose.random() < 0.3):
            break
        token_ids.append(int(choose.choice(may_follow)))
        assert matcher.accept(token_ids[-1:]) == 1, matcher.error
    return text_of(token_ids) if matcher.is_complete else None


def read(use: ToolUse, text: str) -> CollectedChoice:
    chain = ParserChain(parser(AnswerContext(use.tools, use.choice)) for parser in use.parsers)
    deltas: list[Delta] = [Content(text), Finish(FinishReason.STOP)]
    choice = CollectedChoice()
    for delta in deltas:
        choice.add(ChoiceUpdate(0, tuple(chain.feed((delta,))), ()))
    return choice


def check_call(name: str, arguments: str) -> None:
    found = json.loads(arguments)
    if name == "now":
        assert found == {}
        return
    assert name == "get_weather"
    assert {"city", "days"} <= found.keys() <= WEATHER["properties"].keys()
    assert len(found["city"]) <= 8
    assert found["days"] in range(1, 10)
    assert found.get("unit", "C") in ("C", "F")


@pytest.mark.parametrize("family", ["", "unwritten", *ONE_OF_EACH_FORMAT])
@pytest.mark.parametrize("fields", [{"tool_choice": "required"}, {"tool_choice": NAMED}], ids=["required", "named"])
def test_forced_calls_fit_in_every_family(family: str, fields: dict[str, Any]) -> None:
    use, constraint = asked(family, **fields)
    grammar = grammar_of(constraint)
    ended = 0
    for seed in range(3):
        if (text := walk(grammar.matcher(), random.Random(seed))) is None:
            continue
        choice = read(use, text)
        assert choice.content == ""
        assert len(choice.tool_calls) == 1 or (choice.tool_calls and fields["tool_choice"] == "required"), text
        for call in choice.tool_calls:
            check_call(call.name, call.arguments)
        ended += 1
    assert ended


def test_several_calls_come_where_they_may() -> None:
    text = HERMES.format("get_weather", RIGHT) + "\n" + HERMES.format("now", "{}")
    assert takes(grammar_of(asked("hermes", tool_choice="required")[1]), text)
    for fields in ({"tool_choice": "required", "parallel_tool_calls": False}, {"tool_choice": NAMED}):
        grammar = grammar_of(asked("hermes", **fields)[1])
        assert not takes(grammar, text)
        assert takes(grammar, text.split("\n<tool_call>")[0])
    assert not takes(grammar_of(asked("hermes", tool_choice=NAMED)[1]), HERMES.format("now", "{}"))


@pytest.mark.parametrize("family", ONE_OF_EACH_FORMAT)
def test_a_strict_call_fits_once_it_is_begun(family: str) -> None:
    use, constraint = asked(family, tools=tools(strict=True))
    grammar = grammar_of(constraint)
    assert use.reader is not None
    syntax = use.reader.syntax("get_weather")
    assert syntax is not None
    right, wrong = written(family, RIGHT), written(family, WRONG)
    for text in ("", "plain text, 1 < 2", right, *(() if use.reader.bare else ("I look. " + right,))):
        assert takes(grammar, text), text
    assert not takes(grammar, wrong)
    for word in use.reader.begins:  # for every way a call may begin
        begun = word + wrong.removeprefix(word).removeprefix(syntax.before)
        assert not takes(grammar, begun), begun
        assert not takes(grammar, "so: " + begun), begun


@pytest.mark.parametrize("family", ONE_OF_EACH_FORMAT)
def test_whatever_is_put_together_reads_as_calls_that_fit(family: str) -> None:
    """If the parser read a text differently from the grammar, models could bypass the constraint."""
    use, constraint = asked(family, tools=tools(strict=True))
    grammar = grammar_of(constraint)
    assert use.reader is not None
    right, wrong = written(family, RIGHT), written(family, WRONG)
    words = (*use.reader.begins, *use.reader.ends)
    parts = [right, wrong, *words, RIGHT, WRONG, "; ", ", ", "\n", "text", "[", "]", "{", "}"]
    parts += [each.removeprefix(word) for each in (right, wrong) for word in words if each.startswith(word)]
    parts += [f'{{"name": "get_weather", "{key}": {WRONG}}}' for key in ("arguments", "parameters")]
    choose = random.Random(2)
    texts = {"".join(choose.choices(parts, k=choose.randrange(1, 6))) for _ in range(300)}
    texts |= {f"text {word}{right.removeprefix(word)}{part}" for word in words for part in parts}
    taken = [text for text in sorted(texts) if takes(grammar, text)]
    assert taken
    for text in taken:
        for call in read(use, text).tool_calls:
            check_call(call.name, call.arguments)


def test_of_tools_that_are_not_strict_any_arguments_pass() -> None:
    loose = function("loose", parameters=WEATHER)
    grammar = grammar_of(asked("hermes", tools=[*tools(strict=True), loose])[1])
    assert takes(grammar, HERMES.format("loose", WRONG))
    assert not takes(grammar, HERMES.format("get_weather", WRONG))
    assert not takes(grammar, HERMES.format("unheard_of", "{}"))


def test_calls_are_held_by_the_backend_that_can() -> None:
    for fields in ({"tool_choice": "required"}, {"tools": tools(strict=True)}):
        _, constraint = asked("hermes", **fields)
        assert constraint is not None
        assert constraint.asked.backend == "guidance"
    _, constraint = asked("hermes", structured_outputs={"regex": "a", "backend": "outlines"})
    assert constraint is not None
    assert constraint.asked.backend == "outlines"  # which falls back, or refuses where the request has it refuse


def test_nothing_is_held_to_anything_that_asks_for_nothing() -> None:
    assert asked("hermes")[1] is None
    assert asked("hermes", tool_choice="none")[1] is None
    assert asked("pythonic")[1] is None


def test_a_server_may_hold_all_calls_to_their_schemas() -> None:
    options = ToolOptions(tool_call_parser="hermes", enable_auto_tool_choice=True, strict_tool_calls=True)
    assert not takes(grammar_of(asked("hermes", options)[1]), HERMES.format("get_weather", WRONG))


def test_allowed_tools_alone_are_called() -> None:
    for mode in ("auto", "required"):
        choice = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [function("now")]}}
        grammar = grammar_of(asked("hermes", tool_choice=choice)[1])
        assert takes(grammar, HERMES.format("now", "{}"))
        assert not takes(grammar, HERMES.format("get_weather", RIGHT))
        assert takes(grammar, "text") == (mode == "auto")


FORMATS: list[tuple[dict[str, Any], str]] = [
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": WEATHER}}}, RIGHT),
    ({"response_format": {"type": "json_object"}}, "{}"),
    ({"structured_outputs": {"regex": "[0-9]+"}}, "42"),
    ({"guided_choice": ["yes", "no"]}, "no"),
]


@pytest.mark.parametrize(("fields", "text"), FORMATS)
def test_an_answer_calls_tools_or_has_its_format(fields: dict[str, Any], text: str) -> None:
    grammar = grammar_of(asked("hermes", **fields)[1])
    assert takes(grammar, text)
    assert takes(grammar, HERMES.format("get_weather", RIGHT))
    assert not takes(grammar, "plain text")
    required = grammar_of(asked("hermes", tool_choice="required", **fields)[1])
    assert not takes(required, text)
    _, alone = asked("hermes", tool_choice="none", **fields)
    assert alone is not None
    assert alone.asked.request.form is not Form.STRUCTURAL_TAG


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("", {"tools": tools(strict=True)}, "tools"),
    ("unwritten", {"tools": tools(strict=True)}, "tools"),
    ("unwritten", {"structured_outputs": {"regex": "a"}}, "structured_outputs.regex"),
    ("hermes", {"structured_outputs": {"grammar": 'start: "a"'}}, "structured_outputs.grammar"),
    ("hermes", {"guided_json": "{"}, "guided_json"),
]


@pytest.mark.parametrize("choice", ["none", "auto", "required"])
def test_no_nesting_of_a_schema_is_too_deep_to_be_told(choice: str) -> None:
    """A schema nested as deep as a body allows may be too deep for the constraint made from it, and is then refused."""
    tool = function("f", strict=True, parameters={"x": "HERE"})
    body = json.dumps({"messages": [{"role": "user", "content": "A"}], "tool_choice": choice, "tools": [tool]})
    told = []
    for depth in range(800, 1000):
        nested = body.replace('"HERE"', '{"a":' * depth + "1" + "}" * depth)
        try:
            request = decode_json(nested.encode(), ChatCompletionRequest)
            answer_constraint(tool_use(request, Hermes, OPTIONS), None)
        except InvalidRequest as error:
            told.append(error.message)
    assert 0 < len(told) < 200
    assert all("nested too deeply" in message for message in told)


@pytest.mark.parametrize(("family", "fields", "parameter"), REFUSED)
def test_what_cannot_be_held_to_is_refused(family: str, fields: dict[str, Any], parameter: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        asked(family, **fields)
    assert raised.value.parameter == parameter
    assert parameter in raised.value.message


@pytest.mark.parametrize("choice", ["required", NAMED, "auto"])
def test_mistrals_models_choose_their_own_way(choice: Any) -> None:
    """Older ones write a list, newer ones the name and arguments; which one, the model knows."""
    use, constraint = asked("mistral", tools=tools(strict=True), tool_choice=choice)
    grammar, call = grammar_of(constraint), "[TOOL_CALLS]get_weather[ARGS]{}"
    listed = '[TOOL_CALLS][{{"name": "get_weather", "arguments": {}}}]'
    for form in (call, listed):
        assert takes(grammar, form.format(RIGHT))
        assert not takes(grammar, form.format(WRONG))
        assert json.loads(read(use, form.format(RIGHT)).tool_calls[0].arguments) == json.loads(RIGHT)
    assert takes(grammar, call.format(RIGHT) + call.format(RIGHT)) == (choice != NAMED)
    assert takes(grammar, call.format(RIGHT) + "]") == (choice == "auto")  # behind calls, text may follow
