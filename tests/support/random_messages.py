"""Protobuf messages that are valid on the wire and otherwise as odd as can be."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

M = TypeVar("M", bound=Message)

_FLOATS = (
    0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 1e-5, 1e-38, 1e-45, 100.0, -100.0, 3.4e38, -3.4e38, math.inf, -math.inf, math.nan,
)  # fmt: skip
_TEXTS = (
    "", "a", "\0", "../../etc/passwd", "/dev/zero", "x" * 129, "x" * 70_000, "é" * 600, "\U0001f600\u200d" * 40,
    "\u202e\ufeff", "a\r\nb: c", "{{ 1 }}", "{% for i in range(10**9) %}a{% endfor %}", "(a+)+$", "(?=a)", "[", "(?P<",
    "a{1,100000}", "root ::= root", "start: start", "NaN", "-1", "fake", "127.0.0.1:1", "[::1]:99999", ":", "http://x",
)  # fmt: skip
_BYTES = (
    b"", b"\0", b"\xff\xfe", b"{}", b"[]", b"null", b"0", b"1e999", b"NaN", b'"\\ud800"', b'{"a":', b"[" * 100_000,
    b'{"a":' * 2000 + b"1" + b"}" * 2000, b'[{"role":"user","content":"a"}]', b'[{"role":1}]', b"[null]", b"[[]]",
    b'{"type":"object"}', b'{"$ref":"#"}', b'{"type":"string","pattern":"("}', b"\x80\x04\x95", b"x" * 100_000,
    b'{"a":' + b"9" * 5000 + b"}", b"\xef\xbb\xbf{}", b'{"a":1,"a":2}',
)  # fmt: skip
_COUNTS = (0, 1, 2, 3, 17, 130, 1025, 5000)
_INTEGERS = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), -1, 0, 1, 2, 7, 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), -1, 0, 1, 2, 7, 2**31, 2**53 + 1, 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 1, 2, 3, 16, 127, 129, 999, 1000, 65_536, 2**31 - 1, 2**31, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 1, 2, 3, 1000, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1),
}


class MessageFuzzer:
    """Changes valid messages."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance

    def changed(self, message: M) -> M:
        """A copy with one to three changes."""
        found = type(message)()
        found.CopyFrom(message)
        for _ in range(self.chance.randint(1, 3)):
            self._change(found)
        return found

    def _change(self, message: Message, depth: int = 4) -> None:
        fields = list(message.DESCRIPTOR.fields)
        if not fields:
            return
        # What is there already leads deeper into the code than what is not.
        present = [field for field, _ in message.ListFields()]
        field = self.chance.choice(present if present and self.chance.random() < 0.5 else fields)
        if self.chance.random() < 0.08:
            message.ClearField(field.name)
        elif _is_map(field):
            self._change_map(message, field)
        elif field.is_repeated:
            self._change_list(message, field, depth)
        elif field.message_type is not None:
            self._change_inside(getattr(message, field.name), depth)
        else:
            setattr(message, field.name, self._scalar(field))

    def _change_inside(self, inner: Message, depth: int) -> None:
        inner.SetInParent()
        if depth:
            self._change(inner, depth - 1)

    def _change_list(self, message: Message, field: FieldDescriptor, depth: int) -> None:
        values = getattr(message, field.name)
        way = self.chance.random()
        if field.message_type is not None:
            if values and way < 0.6:
                self._change_inside(self.chance.choice(values), depth)
            elif values and way < 0.8:
                copy = type(values[0])()
                copy.CopyFrom(values[0])
                values.extend([copy] * self.chance.choice(_COUNTS[:6]))
            else:
                self._change_inside(values.add(), depth)
        elif values and way < 0.5:
            values[self.chance.randrange(len(values))] = self._scalar(field)
        elif values and way < 0.6:
            del values[self.chance.randrange(len(values))]
        else:
            values.extend([self._scalar(field)] * self._count(values))

    def _count(self, values: Sequence[Any]) -> int:
        is_heavy = bool(values) and isinstance(values[0], (str, bytes)) and len(values[0]) > 1000
        return 1 if is_heavy else self.chance.choice(_COUNTS)

    def _change_map(self, message: Message, field: FieldDescriptor) -> None:
        values = getattr(message, field.name)
        key, value = field.message_type.fields
        for _ in range(self.chance.choice(_COUNTS[:6])):
            if value.message_type is None:
                values[self._scalar(key)] = self._scalar(value)
            else:
                self._change(values[self._scalar(key)], 1)

    def _scalar(self, field: FieldDescriptor) -> Any:
        choice = self.chance.choice
        if field.cpp_type in _INTEGERS:
            return choice(_INTEGERS[field.cpp_type])
        if field.cpp_type in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
            return choice(_FLOATS)
        if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
            return choice((False, True))
        if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
            return choice((0, 1, 2, 3, 4, 99, -1))
        return choice(_BYTES if field.type == FieldDescriptor.TYPE_BYTES else _TEXTS)


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry
