"""Fields that constrain the output: OpenAI's, vLLM's, and vLLM's older ones.

Schemas are passed on unparsed: only the tokenizer service reads them.
"""

from __future__ import annotations

import msgspec

from gateway.protocol.fields import Flag, RequestFields


class JsonSchemaFormat(msgspec.Struct):
    """The `json_schema` of a response format."""

    name: str | None = None
    description: str | None = None
    schema: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    strict: bool | None = None  # ignored: outputs always follow their schema


class ResponseFormat(msgspec.Struct):
    """`response_format`: text, json_object, json_schema, or a structural tag in either of its forms."""

    type: str
    json_schema: JsonSchemaFormat | None = None
    structures: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    triggers: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    format: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)


class StructuredOutputs(RequestFields):
    """The `structured_outputs` field: one kind of constraint, and options for it."""

    json: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    backend: str | None = None
    disable_fallback: Flag = False
    disable_any_whitespace: Flag = False
    disable_additional_properties: Flag = False
    whitespace_pattern: str | None = None


class ConstraintFields(RequestFields, kw_only=True):
    """Constraint fields of all generating endpoints; null means the same as absent."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    guided_json_object: bool | None = None
    guided_decoding_backend: str | None = None
    guided_whitespace_pattern: str | None = None
