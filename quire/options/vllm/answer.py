"""Answers to flags that vLLM has, or had, and that are not options of Quire."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What happens when the flag is used."""

    ACTS_AS = "acts as"
    NO_EFFECT = "no effect"
    REFUSED = "refused"


@dataclass(frozen=True)
class Answer:
    """What using one flag does.

    Attributes:
        text: the reason, in whole sentences; may be empty for ACTS_AS.
        successor: for ACTS_AS, the flag that gets the value, with a dot before an object's key.
        fixed: for ACTS_AS, the value for the successor in place of the flag's own; "" if the successor takes none.
        taken: values that ask for what Quire does anyway; they are accepted silently.
        switch: whether the flag takes no value.
    """

    kind: Kind
    text: str = ""
    successor: str = ""
    fixed: str | None = None
    taken: tuple[str, ...] = ()
    switch: bool = False

    @property
    def said(self) -> str:
        """The answer in whole sentences, without the flag's name."""
        match self.kind:
            case Kind.ACTS_AS:
                value = f" {self.fixed}" if self.fixed else ""
                return f"It acts as {self.successor}{value}. {self.text}".strip()
            case Kind.NO_EFFECT:
                return f"It has no effect. {self.text}"
        return self.text

    def refusal(self, shown: str) -> str:
        """The error message for using it under the name `shown`."""
        if self.kind is Kind.ACTS_AS:
            return f"Use {self.successor}{f' {self.fixed}' if self.fixed else ''} instead of {shown}."
        return f"{shown} is an option of vLLM that Quire does not implement. {self.said}"


def acts_as(
    successor: str, text: str = "", *, fixed: str | None = None, switch: bool = False, taken: tuple[str, ...] = ()
) -> Answer:
    """The answer for a flag whose value another option takes."""
    return Answer(Kind.ACTS_AS, text, successor=successor, fixed=fixed, switch=switch, taken=taken)


def no_effect(text: str, *, switch: bool = False, taken: tuple[str, ...] = ()) -> Answer:
    """The answer for a flag that is ignored with a message."""
    return Answer(Kind.NO_EFFECT, text, switch=switch, taken=taken)


def refused(text: str, *, taken: tuple[str, ...] = ()) -> Answer:
    """The answer for a flag that is refused for good."""
    return Answer(Kind.REFUSED, text, taken=taken)
