"""Conversations as OpenAI's API allows them, in templates written for messages of a certain form.

Each template here has one trait of published models' templates.
"""

from __future__ import annotations

from typing import Any

import pytest
import transformers.utils.chat_template_utils

from tokenizer_svc.chat_template import ChatTemplates, TemplateRejection

ARGUMENTS = {"city": "Zürich", "days": 3, "notes": None}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": ARGUMENTS}}
ASKED = {"role": "user", "content": "Hi"}
CALLED = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "1", "content": "20"}
TEXTS = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
BARE_TOOL = {"type": "function", "function": {"name": "now"}}


def rendered(
    template: str, *messages: dict[str, Any], tools: list[Any] | None = None, variables: Any = None, effort: str = ""
) -> str:
    templates = ChatTemplates({"default": template}, {"bos_token": "<s>"}, 10_000, "auto")
    return templates.render(
        list(messages), tools, add_generation_prompt=True, continue_final_message=False,
        variables=variables or {}, template=None, default_effort=effort,
    ).text  # fmt: skip


def of_each_message(expression: str) -> str:
    return "{% for message in messages %}[" + expression + "]{% endfor %}"


ABSENT = {name: value for name, value in CALLED.items() if name != "content"}


@pytest.mark.parametrize("message", [CALLED, ABSENT, CALLED | {"content": ""}])
@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("{{ message.content }}", ""),
        ("{{ message['content'] | trim }}", ""),
        ("{{ '<' + message.content }}", "<"),
        ("{% if '</think>' in message.content %}thought{% endif %}", ""),
        ("{% set c = message.content %}{% if c is none %}nothing{% else %}{{ c }}{% endif %}", "nothing"),
        ("{% if message.content is not none %}some{% endif %}", ""),
        # It knows null in one place only.
        ("{% if message.content is none %}nothing{% endif %}{{ message.content | length }}", "0"),
    ],
)
def test_content_that_is_missing_beside_calls(message: dict[str, Any], expression: str, expected: str) -> None:
    assert rendered(of_each_message(expression), ASKED, message).endswith(f"[{expected}]")


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("{{ arguments }}", '{"city": "Zürich", "days": 3, "notes": null}'),
        ("{{ '```json\n' + arguments + '\n```' }}", '```json\n{"city": "Zürich", "days": 3, "notes": null}\n```'),
        ("{{ 'f' ~ arguments }}", 'f{"city": "Zürich", "days": 3, "notes": null}'),
        ("{{ arguments | tojson(indent=1) }}", '{\n "city": "Zürich",\n "days": 3,\n "notes": null\n}'),
        ("{% for key, value in arguments.items() %}{{ key }}={{ value }};{% endfor %}",
         "city=Zürich;days=3;notes=None;"),
        ("{{ arguments is mapping }} {{ arguments is string }}", "True False"),
    ],
)  # fmt: skip
def test_arguments_are_an_object_and_json_as_text(expression: str, expected: str) -> None:
    template = "{% set arguments = messages[1].tool_calls[0].function.arguments %}" + expression
    assert rendered(template, ASKED, CALLED) == expected


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{% for t in tools %}{{ '// ' + t.function.description + ':' + t.function.name }}{% endfor %}", "// :now"),
        ("{% for t in tools %}{{ t.function.parameters | tojson }}{% endfor %}",
         '{"type": "object", "properties": {}}'),
        ("{% for t in tools %}{{ t.function.parameters.properties }}{% endfor %}", "{}"),
        # One that renders tools as they are gets them as they are.
        ("{% for t in tools %}{{ t | tojson }}{% endfor %}", '{"type": "function", "function": {"name": "now"}}'),
    ],
)  # fmt: skip
def test_tools_without_description_and_parameters(template: str, expected: str) -> None:
    assert rendered(template, ASKED, tools=[BARE_TOOL]) == expected


def test_no_tools_in_a_template_that_loops_over_them() -> None:
    assert rendered("{% for t in tools %}{{ t }}{% endfor %}none", ASKED) == "none"
    assert rendered("{{ tools is none }}", ASKED) == "True"


def test_reasoning_that_is_refused_beside_text_and_calls() -> None:
    refusing = of_each_message(
        "{% if message.tool_calls and message.content and message.thinking %}{{ raise_exception('both') }}{% endif %}"
        "{{ message.thinking }}"
    )
    thought = {"thinking": "Hm"}
    assert rendered(refusing, CALLED | thought, CALLED | thought | {"content": "I look."}) == "[Hm][]"
    taking = of_each_message("{{ message.thinking }}")
    assert rendered(taking, CALLED | thought | {"content": "I look."}) == "[Hm]"


def test_a_default_effort_that_is_refused() -> None:
    template = (
        "{% if reasoning_effort is defined and reasoning_effort != 'high' %}{{ raise_exception('only high') }}"
        "{% endif %}{{ reasoning_effort | default('own') }}"
    )
    assert rendered(template, ASKED, effort="medium") == "own"
    assert rendered(template, ASKED, effort="high") == "high"
    with pytest.raises(TemplateRejection, match="rejects the conversation: only high"):
        rendered(template, ASKED, variables={"reasoning_effort": "low"}, effort="medium")


def test_what_no_form_makes_right_is_refused() -> None:
    with pytest.raises(TemplateRejection, match="rejects the conversation: no calls"):
        rendered("{{ raise_exception('no calls') }}", ASKED, CALLED, tools=[BARE_TOOL], effort="medium")


def test_documents_that_nobody_sent() -> None:
    template = "{% if documents is not none %}{{ documents | length }}{% else %}none{% endif %}"
    expected, _ = transformers.utils.chat_template_utils.render_jinja_template([[ASKED]], chat_template=template)
    assert [rendered(template, ASKED)] == expected == ["none"]
    assert rendered(template, ASKED, variables={"documents": [{"text": "a"}]}) == "1"


MACRO = (
    "{% macro shown(content) %}{% if content is string %}{{ content }}{% else %}"
    "{% for part in content %}<{{ part.text }}>{% endfor %}{% endif %}{% endmacro %}"
)
# What users and assistants say in parts, and everything else as it is.
MIXED = MACRO + of_each_message(
    "{{ shown(message.content) if message.role in ('user', 'assistant') else message.content }}"
)


@pytest.mark.parametrize(
    ("role", "content", "expected"),
    [
        ("user", "a", "[a]"),
        ("user", TEXTS, "[<a><b>]"),
        ("assistant", TEXTS, "[<a><b>]"),
        ("tool", "a", "[a]"),
        ("tool", TEXTS, "[a\nb]"),
        ("system", TEXTS[:1], "[a]"),
    ],
)
def test_templates_that_take_text_and_parts(role: str, content: Any, expected: str) -> None:
    assert rendered(MIXED, {"role": role, "content": content}) == expected


@pytest.mark.parametrize(
    "call",
    ["shown(message.content)", "shown(content=message['content'])", "shown(message.content if true else '')"],
)
def test_a_macro_that_loops_over_content(call: str) -> None:
    assert rendered(MACRO + of_each_message("{{ " + call + " }}"), {"role": "user", "content": TEXTS}) == "[<a><b>]"


def test_a_variable_that_may_hold_another_field_is_not_about_content() -> None:
    template = of_each_message(
        "{% if message.tool_calls is defined %}{% set calls = message.tool_calls %}"
        "{% for call in calls %}{{ call.function.name }}{% endfor %}"
        "{% elif message.role == 'calls' %}{% set calls = message.content %}"
        "{% else %}{{ '' + message.content }}{% endif %}"
    )
    assert rendered(template, ASKED, CALLED, RESULT) == "[Hi][f][20]"


@pytest.mark.parametrize("content", [[{"type": "image"}], [None], 1])
def test_content_of_another_form_is_refused(content: Any) -> None:
    with pytest.raises(TemplateRejection, match="cannot render this conversation"):
        rendered(of_each_message("{{ 'a' + message.content }}"), {"role": "user", "content": content})


def test_a_text_that_is_too_long() -> None:
    counting = "{% for _ in range(10) %}{{ 'a' * 2000 }}{% endfor %}"
    with pytest.raises(TemplateRejection, match="more than 10000 characters"):
        rendered(counting, ASKED, CALLED, tools=[BARE_TOOL], effort="medium")
