"""Tool calls in chat templates of DeepSeek V3.2 and later: elements whose names begin with `｜DSML｜`."""

from __future__ import annotations


def dsml_calls(block: str) -> str:
    """The part of a template that writes the calls of `message`, if it has any.

    Args:
        block: the name of the element around them.
    """
    return (
        "{%- if message.tool_calls -%}"
        "{{ '\n\n' }}<｜DSML｜" + block + ">{{ '\n' }}"
        "{%- for call in message.tool_calls -%}"
        "<｜DSML｜invoke name=\"{{ call.function.name }}\">{{ '\n' }}"
        "{%- for name, value in call.function.arguments.items() -%}"
        "{%- if not loop.first -%}{{ '\n' }}{%- endif -%}"
        "<｜DSML｜parameter name=\"{{ name }}\" string=\"{{ 'true' if value is string else 'false' }}\">"
        "{{ value if value is string else value | tojson }}</｜DSML｜parameter>"
        "{%- endfor -%}"
        "{{ '\n' }}</｜DSML｜invoke>{{ '\n' }}"
        "{%- endfor -%}"
        "</｜DSML｜" + block + ">"
        "{%- endif -%}"
    )
