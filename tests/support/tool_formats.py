"""How models write tool calls: a template for each family, modeled on the model's own chat template."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jinja2

from gateway.answers.collecting import CollectedChoice
from gateway.answers.context import AnswerContext, Tool
from gateway.answers.deltas import ChoiceUpdate, Content, Delta, Finish, FinishReason
from gateway.tool_parsers import TOOL_PARSERS
from tests.support.parser_classes import parser_class

END = Finish(FinishReason.STOP)


@dataclass(frozen=True)
class Call:
    """A call, with its arguments decoded."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Turn:
    """A model's turn: text, and the calls after it."""

    content: str
    calls: tuple[Call, ...]


@dataclass(frozen=True)
class Form:
    """A family's format of calls."""

    template: str
    content: bool = True  # text may come before the calls
    several: bool = True  # calls in one turn


_OBJECT = '{"name": {{ call.name | tojson }}, "arguments": {{ call.arguments | tojson }}}'
_LIST = "[{% for call in calls %}{{ ', ' if not loop.first }}" + _OBJECT + "{% endfor %}]"
_HERMES = (
    "{{ content }}{% for call in calls %}{{ '\\n' if content or not loop.first }}"
    "<tool_call>\n" + _OBJECT + "\n</tool_call>{% endfor %}"
)
_MINIMAX = "{{ content }}<tool_calls>\n{% for call in calls %}" + _OBJECT + "\n{% endfor %}</tool_calls>"
_TAGGED_LIST = "{{ content }}<tool_calls>" + _LIST + "</tool_calls>"
_LLAMA = (
    "{% for call in calls %}{{ '; ' if not loop.first }}"
    '{"name": {{ call.name | tojson }}, "parameters": {{ call.arguments | tojson }}}{% endfor %}'
)

_XML_CALL = (
    "<tool_call>\n<function={{ call.name }}>\n{% for key, value in call.arguments.items() %}<parameter={{ key }}>\n"
    "{{ value | tojson if value is mapping or (value is sequence and value is not string) else value }}"
    "\n</parameter>\n{% endfor %}</function>\n</tool_call>"
)
_PAIRS = "<arg_key>{{ key }}</arg_key>BREAK<arg_value>{{ value if value is string else value | tojson }}</arg_value>"
_GLM45 = (
    "{{ content }}{% for call in calls %}\n<tool_call>{{ call.name }}\n{% for key, value in call.arguments.items() %}"
    + _PAIRS.replace("BREAK", "\n") + "\n{% endfor %}</tool_call>{% endfor %}"
)  # fmt: skip
_GLM47 = (
    "{{ content }}{% for call in calls %}<tool_call>{{ call.name }}{% for key, value in call.arguments.items() %}"
    + _PAIRS.replace("BREAK", "") + "{% endfor %}</tool_call>{% endfor %}"
)  # fmt: skip
_KEY_WORD = "{{ ', ' if not loop.first }}{{ key }}={{ value | python }}"
_PYTHON_ARGUMENTS = "{% for key, value in call.arguments.items() %}" + _KEY_WORD + "{% endfor %}"
_PYTHON = (
    "[{% for call in calls %}{{ ', ' if not loop.first }}{{ call.name }}(" + _PYTHON_ARGUMENTS
    + "){% endfor %}]"
)  # fmt: skip

_GEMMA = (
    "{%- macro write(value) -%}{%- if value is string -%}QUOTE{{ value }}QUOTE{%- elif value is mapping -%}"
    "{ {%- for key, each in value.items() %}{{ ',' if not loop.first }}{{ key }}:{{ write(each) }}{% endfor -%} }"
    "{%- elif value is sequence -%}[{% for each in value %}{{ ',' if not loop.first }}{{ write(each) }}{% endfor %}]"
    "{%- else -%}{{ value | tojson }}{%- endif -%}{%- endmacro -%}"
    "{{ content }}{% for call in calls %}BEGINcall:{{ call.name }}{{ write(call.arguments) }}END{% endfor %}"
)  # fmt: skip
_DSML = (
    "{{ content + '\n\n' if content }}<｜DSML｜function_calls>\n{% for call in calls %}"
    '<｜DSML｜invoke name="{{ call.name }}">\n{% for key, value in call.arguments.items() %}'
    '<｜DSML｜parameter name="{{ key }}" string="{{ "true" if value is string else "false" }}">'
    "{{ value if value is string else value | tojson }}</｜DSML｜parameter>\n{% endfor %}</｜DSML｜invoke>\n"
    "{% endfor %}</｜DSML｜function_calls>"
)

_STEP3 = (
    "{{ content }}<｜tool_calls_begin｜>\n{% for call in calls %}<｜tool_call_begin｜>function<｜tool_sep｜>"
    '<steptml:invoke name="{{ call.name }}">\n{% for key, value in call.arguments.items() %}'
    '<steptml:parameter name="{{ key }}">{{ value if value is string else value | tojson }}</steptml:parameter>\n'
    "{% endfor %}</steptml:invoke><｜tool_call_end｜>\n{% endfor %}<｜tool_calls_end｜>"
)
_MINICPM = (
    "{{ content }}{% for call in calls %}{{ '\n' if content or not loop.first }}"
    '<function name="{{ call.name }}">{% for key, value in call.arguments.items() %}<param name="{{ key }}">'
    "{% if value is string and ('<' in value or '&' in value or '\n' in value) %}<![CDATA[{{ value }}]]>"
    "{% else %}{{ value }}{% endif %}</param>{% endfor %}</function>{% endfor %}"
)
_KIMI_K3 = (
    "{{ content }}<|open|>tools<|sep|>{% for call in calls %}"
    '<|open|>call tool="{{ call.name }}" index="{{ loop.index }}"<|sep|>{% for key, value in call.arguments.items() %}'
    '<|open|>argument key="{{ key }}" type="{{ value | kind }}"<|sep|>'
    "{{ value if value is string else value | tojson }}<|close|>argument<|sep|>{% endfor %}<|close|>call<|sep|>"
    "{% endfor %}<|close|>tools<|sep|>"
)
_MINIMAX_M3 = (
    "{%- macro write(value) -%}{%- if value is string -%}{{ value }}{%- elif value is mapping and value -%}"
    "{%- for key, each in value.items() %}NS<{{ key }}>{{ write(each) }}NS</{{ key }}>{% endfor -%}"
    "{%- elif value is sequence and value is not mapping -%}"
    "{%- for each in value %}NS<item>{{ write(each) }}NS</item>{% endfor -%}"
    "{%- else -%}{{ value | tojson }}{%- endif -%}{%- endmacro -%}"
    '{{ content }}NS<tool_call>\n{% for call in calls %}NS<invoke name="{{ call.name }}">'
    "{% for key, value in call.arguments.items() %}NS<{{ key }}>{{ write(value) }}NS</{{ key }}>{% endfor %}"
    "NS</invoke>\n{% endfor %}NS</tool_call>"
).replace("NS", "]<]minimax[>[")

_ROW_OF_PAIRS = (
    "{{ content }}<tool_calls>\n{% for call in calls %}<tool_call>{{ call.name }}<tool_sep>\n"
    "{% for key, value in call.arguments.items() %}" + _PAIRS.replace("BREAK", "\n")
    + "\n{% endfor %}</tool_call>\n{% endfor %}</tool_calls>"
)  # fmt: skip
_COHERE = (
    "{{ content }}<|START_ACTION|>[\n{% for call in calls %}{{ ',\n' if not loop.first }}"
    '    {"tool_call_id": "{{ loop.index0 }}", "tool_name": {{ call.name | tojson }}, '
    '"parameters": {{ call.arguments | tojson }}}'
    "{% endfor %}\n]<|END_ACTION|>"
)
_SOLAR = (
    "{{ content }}{% for call in calls %}{{ '\\n' if not loop.first }}<|tool_call:start|>{{ call.name }}\n"
    "{% for key, value in call.arguments.items() %}<|tool_arg:start|>{{ key }}<|tool_arg:value|>"
    "{{ value if value is string else value | tojson }}<|tool_arg:end|>\n{% endfor %}<|tool_call:end|>{% endfor %}"
)


def _with_suffix(template: str, suffix: str) -> str:
    """Appends a suffix to the names of all tags."""
    return re.sub(r"(</?[a-z_]+)>", rf"\1{suffix}>", template)


FORMS: Mapping[str, Form] = {
    "hermes": Form(_HERMES),
    "qwen": Form(_HERMES),
    "granite4": Form(_HERMES),
    "ernie45": Form(_HERMES),
    "longcat": Form(_HERMES.replace("tool_call>", "longcat_tool_call>")),
    "granite-20b-fc": Form("{% for call in calls %}<function_call> " + _OBJECT + "{% endfor %}", content=False),
    "internlm": Form(
        "{{ content }}{% for call in calls %}<|action_start|><|plugin|>\n" + _OBJECT + "<|action_end|>{% endfor %}"
    ),
    "minimax": Form(_MINIMAX),
    "minimax_m1": Form(_MINIMAX),
    "gigachat3": Form(
        "{{ content }}<|message_sep|>\n\n{% for call in calls %}function call<|role_sep|>\n" + _OBJECT + "{% endfor %}",
        several=False,
    ),
    "granite": Form("{{ content }}<|tool_call|>" + _LIST),
    "hunyuan_a13b": Form(_TAGGED_LIST),
    "jamba": Form(_TAGGED_LIST),
    "nemotron_json": Form(_TAGGED_LIST.replace("tool_calls>", "TOOLCALL>")),
    "phi4_mini_json": Form("{{ content }}functools" + _LIST),
    "xlam": Form(_LIST, content=False),
    "cohere_command3": Form(_COHERE),
    "cohere_command4": Form(_COHERE),
    "apertus": Form(
        "{{ content }}<|tools_prefix|>[{% for call in calls %}{{ ', ' if not loop.first }}"
        "{ {{- call.name | tojson }}: {{ call.arguments | tojson -}} }{% endfor %}]<|tools_suffix|>"
    ),
    "deepseek_v3": Form(
        "{{ content }}<｜tool▁calls▁begin｜>{% for call in calls %}{{ '\\n' if not loop.first }}"
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{{ call.name }}\n```json\n{{ call.arguments | tojson }}\n```"
        "<｜tool▁call▁end｜>{% endfor %}<｜tool▁calls▁end｜>"
    ),
    "deepseek_v31": Form(
        "{{ content }}<｜tool▁calls▁begin｜>{% for call in calls %}<｜tool▁call▁begin｜>{{ call.name }}<｜tool▁sep｜>"
        "{{ call.arguments | tojson }}<｜tool▁call▁end｜>{% endfor %}<｜tool▁calls▁end｜>"
    ),
    "kimi_k2": Form(
        "{{ content }}<|tool_calls_section_begin|>{% for call in calls %}<|tool_call_begin|>"
        "functions.{{ call.name }}:{{ loop.index0 }}<|tool_call_argument_begin|>{{ call.arguments | tojson }}"
        "<|tool_call_end|>{% endfor %}<|tool_calls_section_end|>"
    ),
    "mistral": Form("{{ content }}[TOOL_CALLS]" + _LIST),
    "glm4_moe": Form(_GLM45),
    "glm45": Form(_GLM45),
    "glm47": Form(_GLM47),
    "ling3": Form(_GLM47),
    "poolside_v1": Form(_GLM45),
    "hy_v3": Form(_with_suffix(_ROW_OF_PAIRS, ":opensource")),
    "hy_v4": Form(_with_suffix(_ROW_OF_PAIRS.replace("<tool_sep>", ""), ":6124c78e")),
    "solar_open2": Form(_SOLAR),
    "qwen3_coder": Form("{{ content + '\\n' if content }}{% for call in calls %}\n" + _XML_CALL + "{% endfor %}"),
    "qwen3_xml": Form("{{ content + '\n' if content }}{% for call in calls %}\n" + _XML_CALL + "{% endfor %}"),
    "mimo": Form("{{ content }}{% for call in calls %}" + _XML_CALL + "{% endfor %}"),
    "seed_oss": Form(
        "{{ content }}{% for call in calls %}" + _XML_CALL.replace("tool_call>", "seed:tool_call>") + "{% endfor %}"
    ),
    "minimax_m2": Form(
        "{{ content + '\n' if content }}<minimax:tool_call>\n{% for call in calls %}<invoke name=\"{{ call.name }}\">\n"
        '{% for key, value in call.arguments.items() %}<parameter name="{{ key }}">'
        "{{ value if value is string else value | tojson }}</parameter>\n{% endfor %}</invoke>\n{% endfor %}"
        "</minimax:tool_call>"
    ),
    "deepseek_v32": Form(_DSML),
    "deepseek_v4": Form(_DSML.replace("function_calls", "tool_calls")),
    "deepseek_v41": Form(re.sub("｜DSML｜(function_)?", "｜DSML｜ ", _DSML)),
    "minicpm5": Form(_MINICPM),
    "kimi_k3": Form(_KIMI_K3),
    "minimax_m3": Form(_MINIMAX_M3),
    "step3": Form(_STEP3),
    "gemma4": Form(_GEMMA.replace("BEGIN", "<|tool_call>").replace("END", "<tool_call|>").replace("QUOTE", '<|"|>')),
    "functiongemma": Form(
        _GEMMA.replace("BEGIN", "<start_function_call>")
        .replace("END", "<end_function_call>")
        .replace("QUOTE", "<escape>")
    ),
    "step3p5": Form("{{ content }}{% for call in calls %}" + _XML_CALL + "{% endfor %}"),
    "pythonic": Form(_PYTHON, content=False),
    "lfm2": Form("{{ content }}<|tool_call_start|>" + _PYTHON + "<|tool_call_end|>"),
    "llama4_pythonic": Form(_PYTHON, content=False),
    "olmo3": Form(
        "<function_calls>\n{% for call in calls %}{{ call.name }}("
        + _PYTHON_ARGUMENTS.replace("python", "olmo")
        + ")\n{% endfor %}</function_calls>",
        content=False,
    ),
    "llama3_json": Form(_LLAMA, content=False),
    "llama4_json": Form(_LLAMA, content=False),
}

# One family for each parser, for slow tests.
ONE_OF_EACH_FORMAT = tuple({TOOL_PARSERS[family]: family for family in FORMS}.values())

TOOLS = (
    Tool(
        "get_weather",
        {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "hourly": {"type": "boolean"},
                "limit": {"type": ["number", "null"]},
            },
            "required": ["city"],
        },
    ),
    Tool("now", {"type": "object", "properties": {}}),
    Tool(
        "write-file",
        {
            "type": "object",
            "properties": {
                "path": {"type": "string"},
                "lines": {"type": "array", "items": {"type": "string"}},
                "options": {"$ref": "#/$defs/options"},
                "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            },
            "$defs": {"options": {"type": "object"}},
        },
    ),
)
CONTEXT = AnswerContext(TOOLS)
_QUOTES = 'a "quoted" text, it\'s \\n no line break\n\tbut this is {one} [of] two 🙂'
_NESTED = {"a": {"b": [1, 2.5, -3e10, True, False, None, {"c": "}"}]}, "ü": "", "q": '"]}'}
_CALLS = (
    Call("get_weather", {"city": "Zürich", "days": 3, "hourly": False, "limit": None}),
    Call("now", {}),
    Call("write-file", {"path": "a\\b/c.txt", "lines": ["1", _QUOTES, ""], "options": _NESTED, "note": "null!"}),
    Call("get_weather", {"city": _QUOTES, "limit": 0.5}),
    Call("unheard_of", {"x": [{}]}),
)
TURNS = (
    *(Turn("", (call,)) for call in _CALLS),
    Turn("", _CALLS),
    Turn("I'll look. [1] {2} <b>", _CALLS[:2]),
)


def turns_of(family: str) -> list[Turn]:
    """The turns that a family's format can express."""
    form = FORMS[family]
    fitting = [turn for turn in TURNS if form.content or not turn.content]
    return [turn if form.several else Turn(turn.content, turn.calls[:1]) for turn in fitting]


def _as_olmo_writes(value: Any) -> str:
    return repr(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _kind(value: Any) -> str:
    kinds = {str: "string", bool: "boolean", type(None): "null", dict: "object", list: "array"}
    return kinds.get(type(value), "number")


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(keep_trailing_newline=True)
    environment.filters["python"] = repr
    environment.filters["olmo"] = _as_olmo_writes
    environment.filters["kind"] = _kind
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment


_ENVIRONMENT = _environment()


@functools.cache
def _compiled(template: str) -> jinja2.Template:
    return _ENVIRONMENT.from_string(template)


def render(family: str, turn: Turn) -> str:
    """The text that a model of the family generates."""
    return _compiled(FORMS[family].template).render(content=turn.content, calls=turn.calls)


def marks_of(family: str) -> list[str]:
    """The markers around a family's calls."""
    parser = parser_class(TOOL_PARSERS, family)
    return [mark for name in ("begins", "ends", "dropped") for mark in getattr(parser, name)]


@functools.cache
def words_of(family: str) -> Sequence[str]:
    """Words of its format, whole and cut."""
    marks = marks_of(family)
    calls = [render(family, turn) for turn in turns_of(family)[1:2]]
    pieces = [piece for call in calls for piece in re.findall(r"\w+|\s|[^\w\s]+", call)]
    return (*calls, *marks, *(mark[:-1] for mark in marks), *pieces, "{", "[", '"', "<")


def deltas_of(family: str, pieces: Sequence[str], context: AnswerContext = CONTEXT) -> list[Delta]:
    """The parser's deltas for a text that arrives in pieces."""
    parser = parser_class(TOOL_PARSERS, family)(context)
    found = [delta for piece in pieces for delta in parser.feed(Content(piece))]
    return [*found, *parser.feed(END)]


def put_together(deltas: Sequence[Delta]) -> tuple[str, list[tuple[str, str]]]:
    """(content, (name, arguments) of each call)."""
    choice = CollectedChoice()
    choice.add(ChoiceUpdate(0, tuple(deltas), ()))
    assert choice.ended
    return choice.content, [(call.name, call.arguments) for call in choice.tool_calls]


def parse(family: str, *pieces: str) -> tuple[str, list[tuple[str, str]]]:
    """(content, (name, arguments) of each call) of a text that arrives in pieces."""
    return put_together(deltas_of(family, pieces))
