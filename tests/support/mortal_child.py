"""A `ChildPool` process that reports its id and environment, or writes its id to a file and dies."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tokenizer_svc.child import Answer, Message, run


def _make(setup: Message) -> Answer:
    def answer(request: Message) -> Message:
        if file := request.fields.get("die"):
            with Path(file).open("a") as deaths:
                print(os.getpid(), file=deaths)
            os._exit(1)
        return Message({"pid": os.getpid(), "environment": dict(os.environ), "path": sys.path})

    return answer


if __name__ == "__main__":
    run(_make)
