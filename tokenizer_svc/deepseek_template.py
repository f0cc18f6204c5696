"""The chat templates of DeepSeek's models that come without one. That of V3.2 is here; it renders what the published
code for prompts does.

Thinking is off unless a request sets `thinking` or `enable_thinking`. A developer's messages are those of the system.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from quire.tokenizer.modes import DEEPSEEK_V4, DEEPSEEK_V32, model_type
from tokenizer_svc.deepseek_v4_template import deepseek_v4_template
from tokenizer_svc.dsml_calls import dsml_calls

_TOOLS = """## Tools
You have access to a set of tools you can use to answer the user's question.
You can invoke functions by writing a "<｜DSML｜function_calls>" block like the following as part of your reply to the \
user:
<｜DSML｜function_calls>
<｜DSML｜invoke name="$FUNCTION_NAME">
<｜DSML｜parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜parameter>
...
</｜DSML｜invoke>
<｜DSML｜invoke name="$FUNCTION_NAME2">
...
</｜DSML｜invoke>
</｜DSML｜function_calls>
String and scalar parameters should be specified as is without any escaping or quotes, while lists and objects should \
use JSON format. The "string" attribute should be set to "true" for string type parameters and "false" for other types \
(numbers, booleans, arrays, objects).
If the thinking_mode is enabled, then after function results you should strongly consider outputting a thinking block. \
Here is an example:
<｜DSML｜function_calls>
...
</｜DSML｜function_calls>
<function_results>
...
</function_results>
<think>...thinking about results</think>
Here are the functions available in JSONSchema format:
<functions>
{% for tool in tools %}{{ tool.function | tojson }}
{% endfor %}</functions>
"""
_TEMPLATE = (
    "{%- set thinks = thinking | default(false) or enable_thinking | default(false) -%}"
    "{%- set last = namespace(user=-1) -%}"
    "{%- for message in messages -%}"
    "{%- if message.role == 'user' -%}{%- set last.user = loop.index0 -%}{%- endif -%}"
    "{%- endfor -%}"
    "{%- set tools_text -%}{%- if tools -%}{{ '\n\n' }}" + _TOOLS + "{% endif %}{%- endset -%}"
    "<｜begin▁of▁sentence｜>"
    "{%- if messages and messages[0].role not in ('system', 'developer') -%}{{ tools_text }}{%- endif -%}"
    "{%- for message in messages -%}"
    "{%- set answers = not loop.last or add_generation_prompt -%}"
    "{%- set mark = '<think>' if thinks and loop.index0 >= last.user else '</think>' -%}"
    "{%- if message.role in ('system', 'developer') -%}"
    "{{ message.content or '' }}{%- if loop.first -%}{{ tools_text }}{%- endif -%}"
    "{%- elif message.role == 'user' -%}"
    "<｜User｜>{{ message.content }}{%- if answers -%}<｜Assistant｜>{{ mark }}{%- endif -%}"
    "{%- elif message.role == 'tool' -%}"
    "{%- if loop.previtem is not defined or loop.previtem.role != 'tool' -%}{{ '\n\n' }}<function_results>{%- endif -%}"
    "{{ '\n' }}<result>{{ message.content }}</result>"
    "{%- if loop.nextitem is not defined or loop.nextitem.role != 'tool' -%}"
    "{{ '\n' }}</function_results>{%- if answers -%}{{ '\n\n' + mark }}{%- endif -%}"
    "{%- endif -%}"
    "{%- elif message.role == 'assistant' -%}"
    "{%- if thinks and loop.index0 > last.user -%}{{ message.reasoning_content or '' }}</think>{%- endif -%}"
    "{{ message.content or '' }}" + dsml_calls("function_calls") + "<｜end▁of▁sentence｜>"
    "{%- endif -%}"
    "{%- endfor -%}"
)


def deepseek_templates(folder: Path | None) -> Mapping[str, str]:
    """Name → template, for DeepSeek V3.2 and V4; empty for any other model.

    Args:
        folder: with the model's files, if there is one.
    """
    kind = model_type(folder) if folder else ""
    if folder and kind == DEEPSEEK_V4:
        return {"default": deepseek_v4_template(folder)}
    return {"default": _TEMPLATE} if kind == DEEPSEEK_V32 else {}
