"""The child process that compiles constraints with one backend (see `child`)."""

from __future__ import annotations

from quire.errors import InvalidRequest
from quire.structured.base import MAX_GRAMMAR_BYTES, Backend, ConstraintRequest, Form, Inexpressible
from quire.structured.registry import make_backend
from quire.structured.vocabulary import make_vocabulary
from quire.tokenizer.modes import TokenizerPlace
from tokenizer_svc.child import Answer, Message, run
from tokenizer_svc.constraint_limits import check_limits


def _make(setup: Message) -> Answer:
    vocabulary = make_vocabulary(TokenizerPlace(**setup.fields["tokenizer"]).read())
    backend = make_backend(setup.fields["backend"], vocabulary)
    return lambda request: _answer(backend, request)


def _answer(backend: Backend, request: Message) -> Message:
    fields = {**request.fields, "form": Form(request.fields["form"]), "choices": tuple(request.fields["choices"])}
    try:
        wanted = ConstraintRequest(text=request.payload.decode(), **fields)
        check_limits(wanted)
        grammar = backend.compile(wanted)
    except InvalidRequest as error:
        return _refusal(error.message, isinstance(error, Inexpressible))
    except MemoryError:
        return _refusal("It needs too much memory.", inexpressible=False)
    if len(grammar) > MAX_GRAMMAR_BYTES:
        return _refusal(f"Its compiled form has {len(grammar)} bytes; at most {MAX_GRAMMAR_BYTES} are allowed.",
                        inexpressible=True)  # fmt: skip
    return Message(payload=grammar)


def _refusal(error: str, inexpressible: bool) -> Message:
    return Message({"error": error[:2000], "inexpressible": inexpressible})


if __name__ == "__main__":
    run(_make)
