"""Tool-call parsers given output that deviates from the expected form, and what grammars are told of each form."""

from __future__ import annotations

import json
import re

import pytest

from gateway.answers.context import AnswerContext, Tool
from gateway.answers.deltas import Content, ToolCall
from gateway.tool_parsers import TOOL_PARSERS
from tests.support.parser_classes import tool_parser
from tests.support.tool_formats import FORMS, Call, Turn, deltas_of, parse, put_together, render

F = '{"name": "f", "arguments": {"a": 1}}'
F_CALL = [("f", '{"a": 1}')]


@pytest.mark.parametrize(
    ("family", "text", "content", "calls"),
    [
        # White space around calls belongs to the calls; white space between sentences is content.
        ("hermes", f"One. \n\n<tool_call>\n{F}\n</tool_call>\n", "One.", F_CALL),
        ("hermes", f"One.\n<tool_call>{F}</tool_call>\nTwo. <tool_call>{F}</tool_call>", "One.\nTwo.", F_CALL * 2),
        ("hermes", " \n", " \n", []),
        # Malformed endings of a call, as models write them.
        ("hermes", f"<tool_call>{F}}}</tool_call>ok", "}ok", F_CALL),
        ("hermes", f"<tool_call>{F[:-1]}</tool_call>ok", "ok", F_CALL),
        ("hermes", f"<tool_call>{F}<tool_call>{F}", "", F_CALL * 2),
        ("hermes", f"<tool_call>{F}\n{F}</tool_call>", "", F_CALL * 2),
        ("hermes", f"<tool_call>{F} and more", " and more", F_CALL),
        # Text that contains no calls.
        ("hermes", "<tool_call>none</tool_call>", "<tool_call>none</tool_call>", []),
        ("hermes", '<tool_call>{"a": 1}</tool_call>', '<tool_call>{"a": 1}</tool_call>', []),
        ("hermes", '<tool_call>{"name": ""}', '<tool_call>{"name": ""}', []),
        ("hermes", '<tool_call>{"name": 1}', '<tool_call>{"name": 1}', []),
        ("hermes", f"<tool_call> <tool_call>{F}</tool_call>", "<tool_call>", F_CALL),
        # Keys in another order, under other names, repeated, or with values of other types.
        ("hermes", '<tool_call>{"arguments": {"a": 1}, "name": "f"}', "", F_CALL),
        ("hermes", '<tool_call>{"id": [{}], "name": "f", "parameters": {"a": 1}, "name": "g"}', "", F_CALL),
        ("hermes", '<tool_call>{"name": "f"}</tool_call>', "", [("f", "{}")]),
        ("hermes", '<tool_call>{"name": "f", "arguments": null}</tool_call>', "", [("f", "{}")]),
        ("hermes", '<tool_call>{"name": "f", "arguments": ""}</tool_call>', "", [("f", "{}")]),
        ("hermes",
         '<tool_call>{"name": "f", "arguments": "{\\"a\\": \\"\\ud83d\\ude42\\"}"}', "", [("f", '{"a": "🙂"}')]),
        ("hermes", '<tool_call>{"name": "\\u0066\\ud800", "arguments": [ 1,2 ]}', "", [("f\ufffd", "[ 1,2 ]")]),
        ("granite", "[]", "[]", []),
        ("granite", f"<tool_call>[{F}, {{}}] ", "{}] ", F_CALL),
        ("jamba", f"<tool_calls>{F}</tool_calls>", "", F_CALL),
        ("xlam", f"```json\n[{F}]\n```", "", F_CALL),
        ("xlam", "```json\n[1, 2]\n``` and ```\nx\n```", "```json\n[1, 2]\n``` and ```\nx\n```", []),
        # JSON that is an answer, not a call.
        ("llama3_json", '{"name": "Ann", "age": 3}', '{"name": "Ann", "age": 3}', []),
        ("llama3_json", '{"type": "function", "name": "f", "parameters": {"a": 1}}', "", F_CALL),
        ("llama3_json", f"Say {F}", f"Say {F}", []),
        ("llama3_json", f"<|python_tag|>{F}", "", F_CALL),
        ("llama3_json", f"{F}; {F} ; done", " ; done", F_CALL * 2),
        ("mistral", f"Hm [TOOL_CALLS]  [{F}]", "Hm", F_CALL),
        ("mistral", '[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]f{"a": 1}', "", F_CALL * 2),
        ("mistral", "[TOOL_CALLS]f and so on", "[TOOL_CALLS]f and so on", []),
        ("gigachat3", f"Hm<|message_sep|>\n\n<|function_call|>{F}", "Hm", F_CALL),
        ("deepseek_v31", "<｜tool▁call▁begin｜>f<｜tool▁sep｜><｜tool▁call▁end｜>", "", [("f", "{}")]),
        ("kimi_k2", '<|tool_call_begin|> f <|tool_call_argument_begin|> {"a": 1} <|tool_call_end|>', "", F_CALL),
        # Python forms: only literals are read.
        ("pythonic", "[f(a=1), now( )]", "", [*F_CALL, ("now", "{}")]),
        ("pythonic", "[1] says so", "[1] says so", []),
        ("pythonic", "[f(1)]", "[f(1)]", []),
        ("pythonic", "[f(a=1), g]", ", g]", F_CALL),
        ("pythonic", "[f(a=os.getcwd())]", "())]", [("f", '{"a": ')]),
        ("pythonic", "f(a=1)", "f(a=1)", []),
        ("olmo3", "Hm\n<function_calls>\nf(a=1)\nf(a=1,)\n</function_calls>", "Hm", F_CALL * 2),
        # Elements and key-value pairs: without a schema, a value that parses as JSON is JSON, anything else a string.
        ("qwen3_coder", "<function=f><parameter=a>1</parameter></function>", "", F_CALL),
        ("qwen3_coder",
         "<tool_call><function=f><parameter=a>1<parameter=b>x</function>", "", [("f", '{"a": 1, "b": "x"}')]),
        ("qwen3_coder", "<tool_call>\n<function=f>\n</function>\n</tool_call>", "", [("f", "{}")]),
        ("glm45", "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value></tool_call>!", "!", F_CALL),
        ("glm45", "<tool_call>f</tool_call>", "", [("f", "{}")]),
        ("glm45", "<tool_call>f, or not?", "<tool_call>f, or not?", []),
        # Gemma's own template writes Python's words.
        ("gemma4", "<|tool_call>call:f{a:None,b:[True,{c:False}],d:nullx}<tool_call|>", "",
         [("f", '{"a": null, "b": [true, {"c": false}], "d": nullx}')]),
    ],
)  # fmt: skip
def test_what_is_not_quite_a_call(family: str, text: str, content: str, calls: list[tuple[str, str]]) -> None:
    assert parse(family, text) == (content, calls)
    assert parse(family, *text) == (content, calls)


def m3(text: str) -> str:
    """Puts the mark of MiniMax-M3 in front of tags."""
    return text.replace("|", "]<]minimax[>[")


STEP_CALL = "<｜tool_call_begin｜>function<｜tool_sep｜>f\n"
K3_CALL = '<|open|>call tool="f" index="1"<|sep|>'
K3_ARGUMENT = '<|open|>argument key="{}"<|sep|>1<|close|>argument<|sep|>'
K3_TEXT = "<|open|>response<|sep|>Hm<|close|>response<|sep|><|open|>tools<|sep|>"
K3_END = "<|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|>"
VALUE = '<steptml:parameter name="a">1</steptml:parameter></steptml:invoke><｜tool_call_end｜>'


@pytest.mark.parametrize(
    ("family", "text", "content", "calls"),
    [
        # Step 3 may leave out the kind of call, or write the name behind it too.
        ("step3", f'<｜tool_call_begin｜><steptml:invoke name="f">{VALUE}', "", F_CALL),
        ("step3", f'<｜tool_calls_begin｜>{STEP_CALL}<steptml:invoke name="f">{VALUE}<｜tool_calls_end｜>', "", F_CALL),
        ("step3", STEP_CALL, STEP_CALL, []),
        # CDATA is a value's text, in the format that has it.
        ("minicpm5", '<function name="f"><param name="a"><![CDATA[</param>]]></param></function>ok', "ok",
         [("f", '{"a": "</param>"}')]),
        ("minicpm5", "<function name='f'><param name='a'>True</param><param name='b'>{'c': None}</param></function>",
         "", [("f", '{"a": true, "b": {"c": null}}')]),
        ("minicpm5", '<functionname="f"><paramname="a">1</param></function>', "", F_CALL),
        ("minicpm5", "a <function> or <functions>", "a <function> or <functions>", []),
        ("minimax_m2", '<invoke name="f"><parameter name="a"><![CDATA[1]]></parameter></invoke>', "",
         [("f", '{"a": "<![CDATA[1]]>"}')]),
        # Kimi K3 writes text in a channel too, and escapes what is in quotation marks.
        ("kimi_k3", K3_TEXT + K3_CALL + K3_ARGUMENT.format("a") + K3_END, "Hm", F_CALL),
        ("kimi_k3", K3_CALL + K3_ARGUMENT.format('a" type="string') + K3_END, "", [("f", '{"a": "1"}')]),
        ("kimi_k3", K3_CALL + K3_ARGUMENT.format('&quot;a&amp;" type="number') + K3_END, "", [("f", '{"\\"a&": 1}')]),
        # A value in Solar's format is everything between its tokens.
        ("solar_open2",
         "<|tool_call:start|>f\n<|tool_arg:start|>a<|tool_arg:value|> x\n<|tool_arg:end|><|tool_call:end|>",
         "", [("f", '{"a": " x\\n"}')]),
        # MiniMax-M3: without a schema, elements with the name `item` are a list's.
        ("minimax_m3", m3('|<invoke name="f">|<a>1|</a>\n|<b>|<item>x|</item>|<item>|<c>|</c>|</item>|</b>|</invoke>'),
         "", [("f", '{"a": 1, "b": ["x", {"c": ""}]}')]),
        ("minimax_m3", m3('|<invoke name="f">|<a>|<b>|<b>1|</b>|</b>|</a>|</invoke>'), "",
         [("f", '{"a": {"b": {"b": 1}}}')]),
        ("minimax_m3", m3('|<invoke name="f">|<a>text|<b>1|</b>'), m3("1|</b>"), [("f", '{"a": ')]),
        ("minimax_m3", m3('|<invoke name="f">|<a>|<b>1|</b>text|</a>'), "", [("f", '{"a": {"b": 1')]),
        ("minimax_m3", m3("|<tool_call>none|</tool_call>"), m3("|<tool_call>none|</tool_call>"), []),
    ],
)  # fmt: skip
def test_what_is_not_quite_an_element(family: str, text: str, content: str, calls: list[tuple[str, str]]) -> None:
    assert parse(family, text) == (content, calls)
    assert parse(family, *text) == (content, calls)


LITERALS = {
    "'it\\'s'": "it's", '"a\\tb\\u00fc\\x41\\U0001F642"': "a\tbüA🙂", "'\\ud83d\\ude42'": "🙂", "'\\q'": "\\q",
    '""': "", "''": "",
    '"""a\n"b" \'\'\' \\"""c"""': 'a\n"b" \'\'\' """c', "'''it's'''": "it's", '""""""': "",
    "True": True, "false": False, "None": None, "null": None, "-1": -1, "+2": 2, "1_000": 1000, "0x1F": 31, "1.": 1.0,
    ".5": 0.5, "1e3": 1000.0, "(1, 'a')": [1, "a"], "[]": [], "()": [], "{}": {},
    "[[1], {'a': (2,)}, ]": [[1], {"a": [2]}],
    "{1: {'x': None,}, True: 2}": {"1": {"x": None}, "true": 2}, "'a\nb'": "a\nb",
}  # fmt: skip


@pytest.mark.parametrize("literal", LITERALS)
def test_literals_of_python_become_json(literal: str) -> None:
    text = f"[f(a={literal})]"
    ((_, arguments),) = parse("pythonic", text)[1]
    assert json.loads(arguments) == {"a": LITERALS[literal]}
    assert parse("pythonic", *text)[1] == [("f", arguments)]


@pytest.mark.parametrize(
    "literal", ["x", "f()", "1+2", "007", "inf", "nan", "1e999999999_0", "{1}", "[1", "'\\ud8", "'"]
)
def test_what_is_no_literal_is_not_read_as_one(literal: str) -> None:
    _, calls = parse("pythonic", f"[f(a={literal})]")
    with pytest.raises(ValueError, match=r"Expecting|Unterminated|Extra|Invalid"):
        json.loads(calls[0][1])


TYPES = {
    "string": {"type": "string"},
    "maybe": {"type": ["string", "null"]},
    "integer": {"type": "integer"},
    "number": {"anyOf": [{"type": "number"}, {"type": "null"}]},
    "boolean": {"type": "boolean"},
    "array": {"$ref": "#/$defs/list"},
    "object": {"type": "object"},
    "one_of": {"enum": ["1", "2"]},
    "mixed": {"type": ["integer", "string"]},
    "circle": {"$ref": "#/properties/circle"},
    "lost": {"$ref": "#/nowhere"},
    "tree": {"anyOf": [{"$ref": "#/properties/tree"}] * 60},
    "odd": {"type": 1},
    "all_of": {"allOf": [{"$ref": "#/properties/one_of"}], "default": "1"},
}
TYPED = AnswerContext((Tool("f", {"properties": TYPES, "$defs": {"list": {"type": "array"}}}),))


@pytest.mark.parametrize(
    ("parameter", "text", "value"),
    [
        ("string", "1", "1"), ("string", "null", "null"), ("string", '"x"', '"x"'), ("string", "", ""),
        ("string", "\n a\n\n", "\n a\n\n"), ("maybe", "null", None), ("maybe", "[1]", "[1]"), ("integer", "12", 12),
        ("integer", " 12\n", 12), ("integer", "many", "many"), ("integer", "1.5", 1.5), ("number", "3", 3),
        ("number", "None", None), ("boolean", "True", True), ("boolean", "false", False), ("boolean", "yes", "yes"),
        ("array", '["a", 1]', ["a", 1]), ("array", "['a', True]", ["a", True]), ("array", "[a]", "[a]"),
        ("object", '{"a": {"b": null}}', {"a": {"b": None}}), ("object", "{'a': (1,)}", {"a": [1]}),
        ("one_of", "1", "1"), ("all_of", "1", "1"), ("mixed", "1", 1), ("mixed", "1.5", "1.5"), ("mixed", "[1]", "[1]"),
        ("circle", "1", 1),
        ("lost", "a", "a"), ("tree", "true", True), ("odd", "{}", {}), ("unheard_of", "null", None),
    ],
)  # fmt: skip
def test_values_are_what_the_schema_says(parameter: str, text: str, value: object) -> None:
    whole = f"<tool_call><function=f><parameter={parameter}>\n{text}\n</parameter></function></tool_call>"
    ((_, arguments),) = put_together(deltas_of("qwen3_coder", list(whole), TYPED))[1]
    assert json.loads(arguments) == {parameter: value}


def test_strings_in_pairs_keep_their_line_breaks() -> None:
    whole = "<tool_call>f<arg_key>string</arg_key><arg_value>\n1\n</arg_value></tool_call>"
    ((_, arguments),) = put_together(deltas_of("glm47", list(whole), TYPED))[1]
    assert json.loads(arguments) == {"string": "\n1\n"}


NESTED = {
    "ints": {"type": "array", "items": {"type": "integer"}},
    "points": {"type": "array", "items": {"$ref": "#/$defs/point"}},
    "names": {"type": "object", "additionalProperties": {"type": "string"}},
    "either": {"anyOf": [{"type": "null"}, {"type": "object", "properties": {"id": {"type": "string"}}}]},
    "free": {},
}
POINT = {"type": "object", "properties": {"x": {"type": "number"}, "label": {"type": ["string", "null"]}}}


@pytest.mark.parametrize(
    ("parameter", "text", "value"),
    [
        ("ints", "|<item>1|</item>|<item>2|</item>", [1, 2]),
        ("ints", "[1, 2]", [1, 2]),
        ("ints", "", []),
        ("points", "\n|<item>|<x>1.5|</x>|<label>7|</label>|</item>\n|<item>|<label>null|</label>|</item>\n",
         [{"x": 1.5, "label": "7"}, {"label": None}]),
        ("points", "|<point>|<x>1|</x>|</point>", [{"x": 1}]),
        ("names", "|<item>1|</item>|<b>true|</b>", {"item": "1", "b": "true"}),
        ("names", " ", {}),
        ("either", "|<id>1|</id>", {"id": "1"}),
        ("either", "null", None),
        ("free", "|<item>1|</item>", [1]),
        ("free", "|<a>|<item>x|</item>|</a>", {"a": ["x"]}),
        ("free", "", ""),
    ],
)  # fmt: skip
def test_nested_values_are_what_the_schema_says(parameter: str, text: str, value: object) -> None:
    context = AnswerContext((Tool("f", {"properties": NESTED, "$defs": {"point": POINT}}),))
    whole = m3(f'|<invoke name="f">|<{parameter}>{text}|</{parameter}>|</invoke>')
    for pieces in ([whole], list(whole)):
        ((_, arguments),) = put_together(deltas_of("minimax_m3", pieces, context))[1]
        assert json.loads(arguments) == {parameter: value}


@pytest.mark.parametrize("family", ["llama3_json", "xlam", "granite"])
def test_an_answer_in_json_streams_from_its_first_key_on(family: str) -> None:
    parser = tool_parser(family)(AnswerContext())
    begun = '[{"answer"' if parser.bare == "[" else '{"answer"'  # type: ignore[attr-defined]
    assert list(parser.parse(begun[:-1])) == []
    assert list(parser.parse('": [1, ')) == [Content(begun + ": [1,")]
    assert list(parser.parse("2")) == [Content(" 2")]


IDS = {"mistral": r"[a-zA-Z0-9]{9}", "kimi_k2": r"functions\.[-\w]+:\d+"}


@pytest.mark.parametrize("family", FORMS)
def test_every_call_has_an_id_of_its_own(family: str) -> None:
    calls = (Call("now", {}), Call("now", {}))[: 2 if FORMS[family].several else 1]
    deltas = deltas_of(family, [render(family, Turn("", calls))])
    ids = [delta.id for delta in deltas if isinstance(delta, ToolCall) and delta.name]
    assert len(set(ids)) == len(calls)
    assert all(re.fullmatch(IDS.get(family, "call_[0-9a-f]{24}"), each) for each in ids)


def test_the_ids_that_models_give_are_kept_unless_they_repeat() -> None:
    call = '<|tool_call_begin|>functions.f:7<|tool_call_argument_begin|>{"a": 1}<|tool_call_end|>'
    deltas = [delta for delta in deltas_of("kimi_k2", [call, call]) if isinstance(delta, ToolCall)]
    assert [delta.id for delta in deltas] == ["functions.f:7", "functions.f:1"]
    heads = ("f", "functions.f:0", "functions.f:0")
    calls = [f"<|tool_call_begin|>{head}<|tool_call_argument_begin|>{{}}<|tool_call_end|>" for head in heads]
    deltas = [delta for delta in deltas_of("kimi_k2", calls) if isinstance(delta, ToolCall) and delta.name]
    assert len({delta.id for delta in deltas}) == 3
    (delta, *_) = deltas_of("mistral", ["[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{}"])
    assert isinstance(delta, ToolCall)
    assert delta.id == "abcdefghi"


@pytest.mark.parametrize("family", TOOL_PARSERS)
def test_what_grammars_are_told_of_a_form_is_the_form(family: str) -> None:
    parser = tool_parser(family)
    syntax = parser.syntax("get_weather")
    assert syntax is not None
    one = render(family, Turn("", (Call("get_weather", {"city": "Ü"}),))).lstrip()
    assert one.startswith(syntax.before + syntax.begin)
    assert one.endswith(syntax.end + syntax.after)
    if parser.argument_form(Tool("get_weather")) is None:
        call = f'{syntax.begin}{{"city": "Ü"}}{syntax.end}'
        assert one == syntax.before + call + syntax.after
        several = syntax.before + syntax.separator.join([call] * 2) + syntax.after
        assert parse(family, *several) == ("", [("get_weather", '{"city": "Ü"}')] * 2)
