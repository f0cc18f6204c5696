"""`system_fingerprint` changes with what computes, and with nothing else."""

from __future__ import annotations

from gateway.services.fingerprints import system_fingerprints
from quire.v1 import common_pb2, router_pb2


def info(name: str, fingerprint: str, **revisions: str) -> common_pb2.ModelInfo:
    adapters = [common_pb2.AdapterInfo(name=name, revision=revision) for name, revision in revisions.items()]
    return common_pb2.ModelInfo(served_model_names=[name, f"{name}-2"], fingerprint=fingerprint, adapters=adapters)


def test_workers_that_compute_alike_change_nothing() -> None:
    one = system_fingerprints([info("a", "x")], ())
    assert one["a"] == one["a-2"]
    assert one == system_fingerprints([info("a", "x"), info("a", "x")], ())
    mixed = system_fingerprints([info("a", "x"), info("a", "y")], ())
    assert mixed["a"] != one["a"]
    assert mixed == system_fingerprints([info("a", "y"), info("a", "x")], ())


def test_adapters_differ_from_their_model_and_by_revision() -> None:
    first = system_fingerprints([info("a", "x", tuned="1")], ())
    second = system_fingerprints([info("a", "x", tuned="2")], ())
    assert first["a"] == second["a"]
    assert len({first["a"], first["tuned"], second["tuned"]}) == 3


def test_an_alias_covers_all_its_models() -> None:
    alias = [router_pb2.ModelAlias(name="any", models=["a", "b", "unknown"])]
    first = system_fingerprints([info("a", "x"), info("b", "y")], alias)
    second = system_fingerprints([info("a", "x"), info("b", "z")], alias)
    assert first["a"] == second["a"]
    assert first["any"] != second["any"]


def test_a_worker_without_a_fingerprint_leaves_its_models_without_one() -> None:
    assert list(system_fingerprints([info("a", ""), info("a", "x"), info("b", "y")], ())) == ["b", "b-2"]
