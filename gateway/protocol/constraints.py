"""The fields that say what an output has to look like: OpenAI's, vLLM's, and those that vLLM had before.

Schemas go through as they are: what is in them is read by the tokenizer service alone.
"""

from __future__ import annotations

import msgspec

from gateway.protocol.fields import Flag, RequestFields


class JsonSchemaFormat(msgspec.Struct):
    """`json_schema` of a response format."""

    name: str | None = None
    description: str | None = None
    schema: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    strict: bool | None = None  # outputs follow their schema whether it is asked for or not


class ResponseFormat(msgspec.Struct):
    """`response_format`: text, json_object, json_schema, or a structural tag in either of its forms."""

    type: str
    json_schema: JsonSchemaFormat | None = None
    structures: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    triggers: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    format: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)


class StructuredOutputs(RequestFields):
    """`structured_outputs`: one form, and how it is to be followed."""

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
    """Of all generating endpoints; null means the same as absent."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    guided_json_object: bool | None = None
    guided_decoding_backend: str | None = None
    guided_whitespace_pattern: str | None = None
