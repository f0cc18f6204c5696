"""The chat template of DeepSeek V4, which comes without one: it renders what the published code for prompts does.

Messages may have the fields that this code reads: `tools`, `response_format`, `task` (the kind of a classification,
which the model answers in one word) and `wo_eos` (the text is to be continued).

Two deviations serve OpenAI's clients. The code drops most messages of developers, whom it takes for a search agent's
users; here, those before a user's message are the system's. After a system's message at the end, an answer begins.
"""

from __future__ import annotations

from pathlib import Path

from tokenizer_svc.dsml_calls import dsml_calls

_THOROUGH = (
    "Reasoning Effort: Absolute maximum with no shortcuts permitted.\n"
    "You MUST be very thorough in your thinking and comprehensively decompose the problem to resolve the root cause, "
    "rigorously stress-testing your logic against all potential paths, edge cases, and adversarial scenarios.\n"
    "Explicitly write out your entire deliberation process, documenting every intermediate step, considered "
    "alternative, and rejected hypothesis to ensure absolutely no assumption is left unchecked.\n\n"
)
_RELENTLESS = (
    "Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.\n"
    "You MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance: exhaustively decompose the "
    "problem into its most fundamental components, trace every causal chain to its root, and resolve the underlying "
    "cause rather than any surface symptom.\n"
    "Do not stop reasoning until you have independently verified the solution from multiple angles and are certain "
    "that no assumption remains unchecked and no error remains undiscovered.\n\n"
)
# The text for high effort, and that for maximum effort; there is none for low effort.
_EFFORTS = (_THOROUGH, _RELENTLESS)
_EFFORTS_OF_FIRST_RELEASE = ("", _THOROUGH)

_TOOLS = """## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by writing a \
"<｜DSML｜tool_calls>" block like the following:

<｜DSML｜tool_calls>
<｜DSML｜invoke name="$TOOL_NAME">
<｜DSML｜parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜parameter>
...
</｜DSML｜invoke>
<｜DSML｜invoke name="$TOOL_NAME2">
...
</｜DSML｜invoke>
</｜DSML｜tool_calls>

String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, arrays, \
objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside <think>...</think> \
BEFORE any tool calls or final response.

Otherwise, output directly after </think> with tool calls or final response.

### Available Tool Schemas

{% for tool in offered %}{{ tool.function | tojson }}
{% endfor %}

You MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.
"""
_MACROS = (
    "{%- macro text(content) -%}"
    "{%- if content is string -%}{{ content }}"
    "{%- elif content -%}"
    "{%- for part in content -%}{{ part.text }}{%- if not loop.last -%}{{ '\n\n' }}{%- endif -%}{%- endfor -%}"
    "{%- endif -%}"
    "{%- endmacro -%}"
    "{%- macro tools_text(offered) -%}"
    "{%- if offered -%}{{ '\n\n' }}" + _TOOLS + "{% endif %}"
    "{%- endmacro -%}"
)
# Thinking is on unless a switch is off. DeepSeek's API takes medium effort for high, which is also its default.
_SETTINGS = (
    "{%- set effort = reasoning_effort | default('high', true) -%}"
    "{%- set thinks = effort != 'none' and (thinking | default(false) or enable_thinking | default(false)"
    " or thinking is not defined and enable_thinking is not defined) -%}"
    "{%- if tools and messages[0].role not in ('system', 'developer') -%}"
    "{%- set messages = [{'role': 'system', 'content': ''}] + messages -%}"
    "{%- endif -%}"
    "{%- set found = namespace(user=-1, question=-1, tools=tools, kept=[], parts=[], call_ids=[], task=none) -%}"
    "{%- for message in messages -%}"
    "{%- if message.role == 'user' -%}{%- set found.user = loop.index0 -%}{%- endif -%}"
    "{%- if message.role in ('user', 'tool', 'developer') -%}{%- set found.question = loop.index0 -%}{%- endif -%}"
    "{%- if message.tools -%}{%- set found.tools = message.tools -%}{%- endif -%}"
    "{%- endfor -%}"
    # Reasoning before the last question is dropped, unless there are tools.
    "{%- set drops = thinks and drop_thinking | default(true) and not found.tools -%}"
    "{%- for message in messages -%}"
    "{%- if not (drops and message.role == 'developer' and found.user < loop.index0 < found.question) -%}"
    "{%- set found.kept = found.kept + [message] -%}"
    "{%- endif -%}"
    "{%- endfor -%}"
    "{%- set answers = messages | length - 1 - found.question -%}"
)
# Neighbouring messages of users and tools are one turn. Results come in the order of the calls.
_TURN = (
    "{%- if message.role == 'tool' -%}"
    "{%- set place = found.call_ids.index(message.tool_call_id) if message.tool_call_id in found.call_ids else 0 -%}"
    "{%- else -%}{%- set place = -1 -%}"
    "{%- endif -%}"
    "{%- set found.parts = found.parts + [{'place': place, 'text': text(message.content)}] -%}"
    "{%- if next not in ('user', 'tool') or next == 'user' and found.task -%}"
    "<｜User｜>"
    "{%- set results = found.parts | rejectattr('place', 'equalto', -1) | sort(attribute='place') -%}"
    "{%- set shown = namespace(results=0) -%}"
    "{%- for part in found.parts -%}"
    "{%- if not loop.first -%}{{ '\n\n' }}{%- endif -%}"
    "{%- if part.place == -1 -%}{{ part.text }}"
    "{%- else -%}"
    "<tool_result>{{ results[shown.results].text }}</tool_result>{%- set shown.results = shown.results + 1 -%}"
    "{%- endif -%}"
    "{%- endfor -%}"
    "{%- set found.parts = [] -%}"
    "{%- endif -%}"
)
_ANSWER = (
    "{%- if thinks and not task_before and (not drops or loop.revindex0 < answers) -%}"
    "{{ message.reasoning_content or '' }}</think>"
    "{%- endif -%}"
    "{{ text(message.content) }}" + dsml_calls("tool_calls") +
    "{%- if not message.wo_eos -%}<｜end▁of▁sentence｜>{%- endif -%}"
    "{%- if message.tool_calls -%}"
    "{%- set found.call_ids = message.tool_calls | map(attribute='id') | list -%}"
    "{%- endif -%}"
)  # fmt: skip
# What comes between a message and the answer to it.
_OPENING = (
    "{%- if next in ('assistant', 'latest_reminder') or loop.last and add_generation_prompt -%}"
    "{%- if found.task == 'action' -%}<｜Assistant｜>{{ '<think>' if thinks else '</think>' }}<｜action｜>"
    "{%- elif found.task in ('query', 'authority', 'domain', 'title', 'read_url') -%}<｜{{ found.task }}｜>"
    "{%- elif found.task -%}{{ raise_exception('There is no task ' ~ found.task) }}"
    "{%- elif asks or message.role in ('system', 'developer') and next != 'latest_reminder' -%}"
    "<｜Assistant｜>{{ '<think>' if thinks and (not drops or loop.revindex0 <= answers) else '</think>' }}"
    "{%- endif -%}"
    "{%- endif -%}"
)
_TEMPLATE = (
    _MACROS + _SETTINGS + "<｜begin▁of▁sentence｜>"
    "{%- if thinks and effort not in ('low', 'minimal') -%}{{ most if effort == 'max' else high }}{%- endif -%}"
    "{%- for message in found.kept -%}"
    "{%- set next = loop.nextitem.role if loop.nextitem is defined else '' -%}"
    "{%- set asks = message.role in ('user', 'tool') or message.role == 'developer' and loop.index0 > found.user -%}"
    "{%- set task_before = found.task -%}"
    "{%- if not found.parts -%}{%- set found.task = message.task -%}{%- endif -%}"
    "{%- if message.role in ('system', 'developer') -%}"
    "{%- if asks -%}<｜User｜>{%- endif -%}"
    "{{ text(message.content) }}{{ tools_text(tools if loop.first and tools else message.tools) }}"
    "{%- if message.response_format -%}"
    "{{ '\n\n' }}## Response Format:{{ '\n\n' }}You MUST strictly adhere to the following schema to reply:{{ '\n' }}"
    "{{ message.response_format | tojson }}"
    "{%- endif -%}"
    "{%- elif message.role in ('user', 'tool') -%}" + _TURN +
    "{%- elif message.role == 'latest_reminder' -%}<｜latest_reminder｜>{{ text(message.content) }}"
    "{%- elif message.role == 'assistant' -%}" + _ANSWER +
    "{%- else -%}{{ raise_exception('It has no role ' ~ message.role) }}"
    "{%- endif -%}"
    + _OPENING +
    "{%- endfor -%}"
)  # fmt: skip


def deepseek_v4_template(folder: Path) -> str:
    """The template for the release of DeepSeek V4 in the folder.

    The first release knows two levels of effort and later ones three, in other words. Only the published code for
    prompts tells them apart; it is read, not run. Without it, the model is taken for a later one, as vLLM does.
    """
    try:
        published = (folder / "encoding" / "encoding_dsv4.py").read_text(encoding="utf-8", errors="replace")
    except OSError:
        published = _RELENTLESS
    high, most = _EFFORTS if "Beyond maximum" in published else _EFFORTS_OF_FIRST_RELEASE
    return f"{{%- set high, most = '{high}', '{most}' -%}}" + _TEMPLATE
