"""Peers that sources announce and withdraw."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from quire.errors import Overloaded
from quire.rpc.peers import Peers


@dataclass
class Place:
    address: str
    retired: bool = False
    busy: bool = False


def test_a_peer_stays_until_all_let_go_and_it_is_done() -> None:
    gone: list[Place] = []
    peers = Peers(9, gone.append)
    peers.announce("one", ["b:1", "a:1"], Place)
    peers.announce("two", ["a:1", "c:1"], Place)
    assert list(peers.by_address) == ["a:1", "b:1", "c:1"]
    first = peers.by_address["a:1"]
    first.busy = True
    peers.announce("one", [], Place)
    assert (gone, first.retired) == ([Place("b:1", retired=True)], False)
    peers.announce("two", ["c:1"], Place)
    assert (len(gone), first.retired) == (1, True)
    peers.announce("one", ["a:1"], Place)  # it returns before it is done
    assert (peers.by_address["a:1"] is first, first.retired) == (True, False)
    peers.announce("one", [], Place)
    first.busy = False
    peers.sweep()
    assert gone[1:] == [first]
    peers.clear()
    assert [place.address for place in gone] == ["b:1", "a:1", "c:1"]
    assert not peers.by_address


def test_too_many_change_nothing() -> None:
    peers = Peers[Place](2, lambda place: None)
    peers.announce("one", ["a:1", "b:1"], Place)
    with pytest.raises(Overloaded, match="two announces too many addresses: the limit is 2"):
        peers.announce("two", ["c:1"], Place)
    peers.announce("two", ["b:1"], Place)
    assert list(peers.by_address) == ["a:1", "b:1"]
