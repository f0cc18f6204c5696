"""Frames to a caller never exceed the message size limit, however much accumulates while the caller does not read."""

from __future__ import annotations

from quire.rpc.settings import MAX_MESSAGE_BYTES
from quire.v1 import common_pb2, engine_pb2
from router.requests.sessions import CallerSession


def scored(stream_id: int) -> common_pb2.GenerationDelta:
    """A delta with the log-probabilities of a long prompt: about three megabytes."""
    entry = common_pb2.TokenLogprobs(token_ids=range(100_000, 100_021), logprobs=[-0.5] * 21, rank=1)
    return common_pb2.GenerationDelta(stream_id=stream_id, token_ids=[1], prompt_logprobs=[entry] * 20_000)


async def test_large_deltas_go_out_in_several_frames() -> None:
    session = CallerSession()
    for number in range(8):
        if number % 2:
            session.deliver([scored(number)])
        else:
            session.forward(engine_pb2.EngineServiceSessionResponse(deltas=[scored(number)]))
    session.deliver([common_pb2.GenerationDelta(stream_id=8, token_ids=[1])])
    session.half_closed = True
    found: list[int] = []
    while not session.finished:
        frame = await session.next_frame()
        assert frame.ByteSize() <= MAX_MESSAGE_BYTES
        found += [delta.stream_id for delta in frame.deltas]
    assert found == list(range(9))
