"""A server that streams answers at a known pace, so that anything more a client reports is the client's own overhead.

`python -m benchmarks.paced_server PORT FIRST BETWEEN` answers completions with a first chunk after FIRST milliseconds
and another chunk every BETWEEN milliseconds.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import dataclass

import uvloop

_EVENT = b'data: {"id":"cmpl-1","object":"text_completion","model":"paced","choices":[{"index":0,"text":" a"}]}\n\n'
_MODELS = b'{"data":[{"id":"paced"}]}'


@dataclass(frozen=True)
class Pace:
    """Seconds to the first chunk, and between two chunks."""

    first: float
    between: float


async def _serve(port: int, pace: Pace) -> None:
    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _converse(reader, writer, pace)

    server = await asyncio.start_server(converse, "127.0.0.1", port, limit=2**24)
    async with server:
        await server.serve_forever()


async def _converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pace: Pace) -> None:
    try:
        while head := await reader.readuntil(b"\r\n\r\n"):
            lengths = [line[15:] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            body = await reader.readexactly(int(lengths[0])) if lengths else b""
            if head.startswith(b"GET"):
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(_MODELS), _MODELS))
            else:
                await _stream(writer, json.loads(body)["max_tokens"], pace)
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def _stream(writer: asyncio.StreamWriter, count: int, pace: Pace) -> None:
    loop = asyncio.get_running_loop()
    start = loop.time()
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
    for number in range(count):
        await asyncio.sleep(max(0.0, start + pace.first + number * pace.between - loop.time()))
        writer.write(b"%x\r\n%b\r\n" % (len(_EVENT), _EVENT))
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":%d}}\n\ndata: [DONE]\n\n' % count
    writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(usage), usage))


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1]), Pace(float(sys.argv[2]) / 1000, float(sys.argv[3]) / 1000)))
