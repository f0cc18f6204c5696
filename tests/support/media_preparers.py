"""Preparers of media without child processes."""

from __future__ import annotations

import pytest

from tokenizer_svc.child import Message
from tokenizer_svc.child_pool import ChildEnded
from tokenizer_svc.media import MediaPreparer
from tokenizer_svc.media_process import make


def in_this_process(preparer: MediaPreparer, monkeypatch: pytest.MonkeyPatch) -> MediaPreparer:
    """Lets a preparer call what its child processes would run. One that could not load the processor would end."""

    async def start() -> None:
        return

    for pool in preparer._pools.values():

        async def ask(message: Message, setup: Message = pool._setup) -> Message:
            try:
                answer = make(setup)
            except Exception:
                raise ChildEnded from None
            return answer(message)

        monkeypatch.setattr(pool, "start", start)
        monkeypatch.setattr(pool, "ask", ask)
    return preparer
