"""What becomes of a flag that vLLM has, or had, and that is no option of Quire."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What happens to somebody who uses it."""

    ACTS_AS = "acts as"
    NO_EFFECT = "no effect"
    REFUSED = "refused"
    NOT_BUILT = "not built yet"


@dataclass(frozen=True)
class Answer:
    """Of one flag.

    Attributes:
        text: the reason, in whole sentences; of ACTS_AS it may be empty. Of NOT_BUILT it says what to do instead.
        successor: of ACTS_AS, the flag that gets the value, with a dot before the key of an object.
        fixed: of ACTS_AS, the value that the successor gets in place of the flag's own; "" where it takes none.
        capability: of NOT_BUILT, what is missing.
        taken: values that ask for what Quire does anyway; they are taken in silence.
        switch: it takes no value.
    """

    kind: Kind
    text: str = ""
    successor: str = ""
    fixed: str | None = None
    capability: str = ""
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
            case Kind.NOT_BUILT:
                return f"It needs {self.capability}, which Quire does not have yet. {self.text}".strip()
        return self.text

    def refusal(self, shown: str) -> str:
        """What somebody reads who used it under that name."""
        if self.kind is Kind.ACTS_AS:
            return f"In place of {shown} use {self.successor}{f' {self.fixed}' if self.fixed else ''}."
        return f"{shown} is an option of vLLM that Quire does not implement. {self.said}"


def acts_as(
    successor: str, text: str = "", *, fixed: str | None = None, switch: bool = False, taken: tuple[str, ...] = ()
) -> Answer:
    """One whose value another option takes."""
    return Answer(Kind.ACTS_AS, text, successor=successor, fixed=fixed, switch=switch, taken=taken)


def no_effect(text: str, *, switch: bool = False, taken: tuple[str, ...] = ()) -> Answer:
    """One that may be left out, and is passed over."""
    return Answer(Kind.NO_EFFECT, text, switch=switch, taken=taken)


def refused(text: str, *, taken: tuple[str, ...] = ()) -> Answer:
    """One that will stay refused."""
    return Answer(Kind.REFUSED, text, taken=taken)


def not_built(capability: str, text: str = "Leave it out.") -> Answer:
    """One that waits for a capability."""
    return Answer(Kind.NOT_BUILT, text, capability=capability)
