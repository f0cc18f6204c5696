"""How the nodes of an engine find each other."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import pytest

from engine_svc.executor import rendezvous
from engine_svc.executor.channel import Channel
from engine_svc.executor.rendezvous import OtherNodes, await_nodes, differences, join_first_node, settings_of
from quire.errors import StartupError
from quire.options.model import ModelOptions
from tests.support.engine_options import engine_options
from tests.support.engine_process import free_port

HOST, SECONDS = "127.0.0.1", 30.0
MODEL = ModelOptions()


@pytest.fixture
def port() -> int:
    return free_port()


def node(rank: int, port: int, seconds: float = SECONDS, **given: Any) -> Any:
    layout = {"tensor_parallel_size": 2, "pipeline_parallel_size": 2, "nnodes": 2, **given}
    return engine_options(
        node_rank=rank, master_addr=HOST, master_port=port, node_join_timeout_seconds=seconds, **layout
    )


class FirstNode(threading.Thread):
    """Node 0 while it waits for the others."""

    def __init__(self, port: int, **given: Any) -> None:
        super().__init__(daemon=True)
        self._options = node(0, port, **given)
        self.found: OtherNodes | StartupError | None = None
        self.start()

    def run(self) -> None:
        try:
            self.found = await_nodes(MODEL, self._options)
        except StartupError as error:
            self.found = error

    def others(self) -> OtherNodes:
        self.join(SECONDS)
        assert isinstance(self.found, OtherNodes)
        return self.found


def close(*channels: Channel) -> None:
    for channel in channels:
        channel.close()


def test_the_ranks_of_a_node_join_in_order_and_keep_what_is_theirs(port: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    first = FirstNode(port, rank_secret="of the test", register_with=("r:1",))
    channels = join_first_node(MODEL, node(1, port, rank_secret="of the test", host_ip="127.0.0.7"))
    others = first.others()
    assert [(rank.device, rank.address) for rank in others.ranks] == [(0, f"{HOST}, node 1"), (1, f"{HOST}, node 1")]
    assert others.rendezvous.startswith(f"tcp://{HOST}:")
    for rank, channel in enumerate(channels):
        others.ranks[rank].channel.send([rank], SECONDS)
        assert channel.receive(list[int], SECONDS) == [rank]
    close(*channels, *(rank.channel for rank in others.ranks))
    assert f"waiting for node 1 of 2 at {HOST}:{port}" in caplog.text


def test_a_node_with_other_settings_is_told_what_differs_and_may_come_again(
    port: int, caplog: pytest.LogCaptureFixture
) -> None:
    first = FirstNode(port, max_model_len=64)
    said = "--max-model-len is 64 on node 0, but 128 on the other; --seed is unset on node 0, but 1 on the other"
    with pytest.raises(StartupError, match=f"refuses rank 2: {said}"):
        join_first_node(MODEL, node(1, port, max_model_len=128, seed=1))
    channels = join_first_node(MODEL, node(1, port, max_model_len=64))
    close(*channels, *(rank.channel for rank in first.others().ranks))
    assert f"was refused: {said}" in caplog.text


def test_who_has_another_secret_or_comes_twice_is_refused(port: int) -> None:
    first = FirstNode(port, tensor_parallel_size=3, pipeline_parallel_size=1, nnodes=3, rank_secret="of the test")
    layout = {"tensor_parallel_size": 3, "pipeline_parallel_size": 1, "nnodes": 3}
    with pytest.raises(StartupError, match="refuses rank 1: the worker does not accept rank 1"):
        join_first_node(MODEL, node(1, port, **layout))
    second = join_first_node(MODEL, node(1, port, **layout, rank_secret="of the test"))
    with pytest.raises(StartupError, match="rank 1 is not expected, or has come before"):
        join_first_node(MODEL, node(1, port, **layout, rank_secret="of the test"))
    third = join_first_node(MODEL, node(2, port, **layout, rank_secret="of the test"))
    close(*second, *third, *(rank.channel for rank in first.others().ranks))


def test_a_node_that_has_gone_before_the_others_came_may_come_again(port: int) -> None:
    layout = {"tensor_parallel_size": 3, "pipeline_parallel_size": 1, "nnodes": 3}
    first = FirstNode(port, **layout)
    close(*join_first_node(MODEL, node(1, port, **layout)))
    third = join_first_node(MODEL, node(2, port, **layout))
    assert first.is_alive()
    second = join_first_node(MODEL, node(1, port, **layout))
    close(*second, *third, *(rank.channel for rank in first.others().ranks))


def test_settings_are_what_ranks_compute_by(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = settings_of(MODEL, node(0, 1, rank_secret="secret"))
    assert "secret" not in str(ours)
    assert not differences(ours, settings_of(dataclasses.replace(MODEL, served_model_name=("a",)), node(1, 1)))
    monkeypatch.setattr(rendezvous, "count_gpus", lambda: 8)
    monkeypatch.setattr(rendezvous, "model_digest", lambda folder, options: bytes(32))
    said = differences(ours, settings_of(MODEL, node(1, 1)))
    assert "the device is cpu on node 0, but cuda on the other" in said
    assert "the digest of the model's files is" in said


def test_nobody_waits_forever_or_at_an_address_of_others(port: int) -> None:
    with pytest.raises(StartupError, match=rf"Node 0 is not at {HOST}:{port} after 0.1 s.*Connection refused"):
        join_first_node(MODEL, node(1, port, 0.1))
    with pytest.raises(StartupError, match=r"ranks 2, 3 have not connected within 0.1 s"):
        await_nodes(MODEL, node(0, port, 0.1))
    elsewhere = node(0, port, host_ip="192.0.2.7")
    with pytest.raises(StartupError, match=r"cannot wait for the others at 192\.0\.2\.7"):
        await_nodes(MODEL, elsewhere)
