"""The contract of every worker that the router's core uses: the one behind gRPC, and the simulated one."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from quire.errors import Unavailable
from quire.v1 import common_pb2
from router.index.members import Members
from router.workers.state import State
from tests.support.engine_process import free_port
from tests.support.worker_peers import OUTPUT_TOKENS, PROMPT_BLOCKS, RemotePeer, SimulatedPeer, WorkerPeer


@pytest.fixture(params=["remote", "simulated"])
async def peer(request: pytest.FixtureRequest) -> AsyncIterator[WorkerPeer]:
    """A peer whose worker is ready."""
    peer = await RemotePeer(free_port()).open() if request.param == "remote" else SimulatedPeer()
    await peer.until(lambda: peer.worker.ready and peer.worker.load.last)
    yield peer
    await peer.close()


async def test_a_ready_worker_has_told_what_it_serves(peer: WorkerPeer) -> None:
    worker, info = peer.worker, peer.worker.model_info
    assert info is not None
    assert worker.load.sequences < worker.load.most_sequences
    assert worker.load.prefill_tokens <= worker.load.most_tokens
    assert worker.make
    assert info.block_size == 16
    assert worker.load.max_sequences == info.max_num_seqs > 0
    assert worker.serves("") and worker.serves(info.served_model_names[0])
    assert not worker.serves("another")
    assert not peer.lost


async def test_an_answer_comes_in_order_and_ends_once(peer: WorkerPeer) -> None:
    for stream_id, number in ((7, 0), (8, 2), (9, 3)):
        peer.start(stream_id, number)
    await peer.until(lambda: len(peer.finals) == 3)
    assert {stream_id: peer.tokens[stream_id] for stream_id in (7, 8, 9)} == {
        7: peer.expected(0), 8: peer.expected(2), 9: peer.expected(3)
    }  # fmt: skip
    usage = peer.finals[8].usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (40, OUTPUT_TOKENS[2])
    assert not peer.at_engine()


async def test_a_request_goes_on_behind_what_others_generated(peer: WorkerPeer) -> None:
    whole = peer.expected(2)
    peer.start(1, 2, whole[:25])
    await peer.until(lambda: 1 in peer.finals)
    assert peer.tokens[1] == whole[25:]


async def test_an_aborted_request_takes_nothing_any_more(peer: WorkerPeer) -> None:
    peer.start(1, 1)
    await peer.until(lambda: peer.tokens[1])
    peer.worker.abort(1)
    peer.worker.abort(99)  # a number that it never had
    await peer.until(lambda: not peer.at_engine())
    peer.start(2, 0)
    await peer.until(lambda: 2 in peer.finals)
    told = len(peer.tokens[1])
    assert told < OUTPUT_TOKENS[1]
    assert peer.tokens[1] == peer.expected(1)[:told]
    peer.start(3, 3)
    await peer.until(lambda: 3 in peer.finals)
    assert len(peer.tokens[1]) == told
    assert 1 not in peer.finals


async def test_heartbeats_tell_the_load(peer: WorkerPeer) -> None:
    peer.start(1, 1)
    await peer.until(lambda: peer.worker.load.last.running_sequences == 1 and peer.worker.load.last.busy)
    peer.worker.abort(1)
    await peer.until(lambda: not peer.worker.load.last.busy)


def known_blocks(peer: WorkerPeer, keys: list[int]) -> int:
    """Returns how many leading blocks the index believes the worker to hold on its device."""
    return int(peer.index.cover(keys, Members.of([peer.worker.blocks.bit]))[0][0])


async def test_the_index_follows_its_cache(peer: WorkerPeer) -> None:
    keys, blocks = peer.keys(0), peer.worker.blocks
    assert known_blocks(peer, keys) == 0
    peer.start(1, 0)
    await peer.until(lambda: known_blocks(peer, keys) == PROMPT_BLOCKS)
    assert peer.worker.blocks is blocks
    assert blocks.num_blocks >= PROMPT_BLOCKS


async def test_a_worker_that_drains_ends_what_it_has(peer: WorkerPeer) -> None:
    peer.start(1, 2)
    await peer.until(lambda: peer.tokens[1])
    changes = peer.changes
    await peer.drain()
    await peer.until(lambda: peer.worker.condition.state is State.DRAINING)
    assert peer.worker.condition.reason
    assert peer.changes > changes
    await peer.until(lambda: 1 in peer.finals)
    assert peer.tokens[1] == peer.expected(2)
    assert not peer.lost


async def test_a_lost_worker_takes_nothing_and_tells_it_once(peer: WorkerPeer) -> None:
    peer.start(1, 1)
    await peer.until(lambda: peer.tokens[1])
    changes = peer.changes
    await peer.die()
    await peer.until(lambda: peer.lost)
    assert peer.worker.condition.state is State.UNREACHABLE
    assert peer.worker.condition.reason
    assert peer.worker.model_info is not None
    assert peer.changes > changes
    with pytest.raises(Unavailable):
        peer.start(2, 0)
    peer.worker.abort(1)
    peer.worker.stop(1, 0, 3)
    deaths: list[str] = []
    peer.worker.when_dead(lambda: deaths.append("dead"))
    await peer.until(lambda: deaths)
    (error,) = peer.lost
    assert isinstance(error, Unavailable)
    assert deaths == ["dead"]


async def test_nobody_is_told_of_the_death_of_one_that_lives(peer: WorkerPeer) -> None:
    peer.worker.when_dead(lambda: pytest.fail("it lives"))
    peer.start(1, 2)
    await peer.until(lambda: 1 in peer.finals)


async def test_a_new_process_begins_with_nothing(peer: WorkerPeer) -> None:
    blocks = peer.worker.blocks
    peer.start(1, 1)
    await peer.until(lambda: peer.tokens[1] and blocks.num_blocks)
    await peer.die()
    await peer.until(lambda: peer.lost)
    told = len(peer.tokens[1])
    await peer.begin_again()
    await peer.until(lambda: peer.worker.ready and peer.worker.blocks is not blocks)
    assert known_blocks(peer, peer.keys(1)) == 0
    peer.start(1, 0)  # the number of a stream of the previous process
    await peer.until(lambda: 1 in peer.finals)
    assert peer.tokens[1][told:] == peer.expected(0)
    assert peer.finals[1].finish_reason in (common_pb2.FINISH_REASON_STOP, common_pb2.FINISH_REASON_LENGTH)
    assert len(peer.lost) == 1
