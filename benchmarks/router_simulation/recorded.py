"""Traffic that a router has recorded (`--record-requests`)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from benchmarks.router_simulation.requests import BLOCK_SIZE, Conversation, SimRequest, Text
from quire.runners import GENERATE
from router.requests.recorder import RecordedRequest

_KEY_MASK = (1 << 64) - 1


def read_recording(path: Path, most: int) -> list[Conversation]:
    """The first `most` generations of a recording, those of a conversation one after the other, as far apart as they
    were.

    What a request's answer consists of shows in the next prompt of its conversation; other answers are like no other.

    Raises:
        ValueError: it has no generations, or blocks that are not of whole blocks of the simulation.
    """
    generations = (request for request in _lines(path) if request.runner == GENERATE)
    requests = sorted(generations, key=lambda request: request.time)[:most]
    if not requests:
        raise ValueError(f"{path} has no requests to generate.")
    sessions: dict[str, list[int]] = {}
    for number, request in enumerate(requests):
        sessions.setdefault(request.session or f"alone {number}", []).append(number)
    start, seconds = requests[0].time, max(requests[-1].time - requests[0].time, 1e-9)
    return [
        Conversation((requests[numbers[0]].time - start) / seconds, _turns(requests, numbers, name))
        for name, numbers in sessions.items()
    ]


def _lines(path: Path) -> Iterator[RecordedRequest]:
    """The requests in the file that was full, if there is one, and in the last one."""
    for file in (path.with_name(f"{path.name}.1"), path):
        for line in file.read_bytes().splitlines() if file.exists() else ():
            with contextlib.suppress(msgspec.DecodeError):  # a disk was full
                yield msgspec.json.decode(line, type=RecordedRequest)


def _turns(requests: Sequence[RecordedRequest], numbers: Sequence[int], session: str) -> list[tuple[float, SimRequest]]:
    prompts = [_prompt(requests[number], number) for number in numbers]
    made, ended = [], requests[numbers[0]].time
    for turn, number in enumerate(numbers):
        request, prompt = requests[number], prompts[turn]
        output_tokens = max(1, request.output_tokens)
        count = (request.prompt_tokens + output_tokens) // BLOCK_SIZE
        after = prompts[turn + 1][:count] if turn + 1 < len(numbers) else []
        keys = after if after[: len(prompt)] == prompt else prompt
        own = Text().add(2 * number + 2, (count - len(keys)) * BLOCK_SIZE).keys
        made.append(
            (
                max(0.0, request.time - ended),
                SimRequest(
                    number, [*keys, *own], request.prompt_tokens, output_tokens, session_id=session,
                    tenant=request.tenant,
                ),
            )
        )  # fmt: skip
        ended = request.time + request.seconds
    return made


def _prompt(request: RecordedRequest, number: int) -> list[int]:
    """The keys of a prompt's full blocks, as the simulation divides it; made up if none were recorded."""
    count = request.prompt_tokens // BLOCK_SIZE
    if not request.blocks:
        return Text().add(2 * number + 1, count * BLOCK_SIZE).keys
    parts, rest = divmod(request.block_size, BLOCK_SIZE)
    if rest:
        raise ValueError(f"Blocks of {request.block_size} tokens are not multiples of {BLOCK_SIZE}.")
    keys = [hash((key, part)) & _KEY_MASK for key in request.block_keys for part in range(parts)]
    return [*keys, *Text().add(2 * number + 1, (count - len(keys)) * BLOCK_SIZE).keys]
