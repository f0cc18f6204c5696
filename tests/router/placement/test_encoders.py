"""Workers that encode for others: which requests' images go to which, and that they get no requests."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from quire.v1 import admin_pb2, common_pb2, engine_pb2
from router.administration import RouterAdminServicer
from router.placement.encoders import Encoders
from router.workers.base import hash_of
from tests.router.conftest import StartEngine, StartRouter
from tests.support.fake_engine import expected_tokens
from tests.support.router_client import generation
from tests.support.waiting import WAIT_SECONDS, eventually

ENCODER = {"runner": "encode", "ec_role": "ec_producer", "encoder_fingerprint": "alike"}
CONSUMER = {"ec_role": "ec_consumer", "encoder_fingerprint": "alike"}
PROMPT = list(range(40))


def with_images(*keys: int) -> common_pb2.Generation:
    images = [common_pb2.Image(offset=place, num_tokens=1, routing_key=key) for place, key in enumerate(keys)]
    return generation(PROMPT, 5, images=images)


async def test_images_are_encoded_where_they_have_been_before(
    start_engine: StartEngine, start_router: StartRouter
) -> None:
    """As long as there is such a worker, of the same model."""
    encoders = [await start_engine(**ENCODER) for _ in range(2)]
    unlike = await start_engine(**ENCODER | {"encoder_fingerprint": "another"})
    engine = await start_engine(**CONSUMER)
    running = await start_router(engine.address, unlike.address, *(each.address for each in encoders))
    addresses = {each.address for each in encoders}
    keys = range(16)
    for _ in range(2):
        assert await running.client.generate(with_images(*keys)) == expected_tokens(PROMPT, 5)
    first, again = ([image.encoder for image in started.images] for started in engine.record.started)
    assert first == again
    assert set(first) == addresses
    await encoders[0].close()
    (lost,) = (each for each in running.router.registry.workers if each.address == encoders[0].address)
    await eventually(lambda: not lost.ready)
    await running.client.generate(with_images(*keys))
    assert {image.encoder for image in engine.record.started[-1].images} == {encoders[1].address}
    assert not any(each.record.started for each in (*encoders, unlike))


async def test_only_workers_that_ask_are_told_of_encoders(start_engine: StartEngine, start_router: StartRouter) -> None:
    encoder, engine = await start_engine(**ENCODER), await start_engine(encoder_fingerprint="alike")
    running = await start_router(encoder.address, engine.address)
    assert await running.client.generate(with_images(1)) == expected_tokens(PROMPT, 5)
    assert [image.encoder for image in engine.record.started[0].images] == [""]
    await eventually(lambda: running.router.registry.num_ready == 1)  # of those that take requests


def worker(address: str, waiting: int = 0, **info: Any) -> Any:
    load = SimpleNamespace(last=common_pb2.EngineLoad(waiting_requests=waiting))
    info = {"encoder_fingerprint": "alike"} | info
    return SimpleNamespace(
        address=address, home=hash_of(address), load=load, model_info=common_pb2.ModelInfo(**info),
        encodes_only=info.get("ec_role") == "ec_producer", ready=True,
    )  # fmt: skip


def test_a_busy_encoder_leaves_images_to_others() -> None:
    others = [worker("a:1", ec_role="ec_producer"), worker("b:1", 3, ec_role="ec_producer")]
    asking = worker("c:1", ec_role="ec_consumer")
    subject = Encoders(lambda: [*others, asking])

    def chosen() -> list[str]:
        return [subject.choose(with_images(key), asking)[0] for key in range(16)]

    assert set(chosen()) == {"a:1"}
    others[1].load.last.waiting_requests = 2
    assert set(chosen()) == {"a:1", "b:1"}
    assert chosen() == chosen()
    same = list(subject.choose(with_images(*[7] * 9), asking))
    assert abs(2 + same.count("b:1") - same.count("a:1")) <= 3  # as they come, they count as waiting
    others[0].ready = False
    subject.changed()
    assert set(chosen()) == {"b:1"}
    others[1].ready = False
    subject.changed()
    assert not subject.choose(with_images(1), asking)


async def test_adapters_and_weights_are_not_for_encoders(start_engine: StartEngine, start_router: StartRouter) -> None:
    encoder, engine = await start_engine(**ENCODER), await start_engine(max_loras=1)
    running = await start_router(encoder.address, engine.address)
    await running.client.stub.LoadAdapter(engine_pb2.LoadAdapterRequest(name="a", path="/a"), timeout=WAIT_SECONDS)
    assert (list(encoder.adapters), list(engine.adapters)) == ([], ["a"])


@pytest.mark.parametrize(
    ("command", "named", "expected"),
    [
        ({"update_weights": admin_pb2.UpdateWeights()}, (), ["b:1"]),
        ({"update_weights": admin_pb2.UpdateWeights()}, ("a:1",), ["a:1"]),
        ({"reset_encoder_cache": admin_pb2.ResetEncoderCache()}, (), ["a:1", "b:1"]),
    ],
)
async def test_commands_about_weights_pass_by_encoders(
    command: dict[str, Any], named: tuple[str, ...], expected: list[str]
) -> None:
    """Unless they are named."""

    async def administer(*_: Any) -> admin_pb2.AdminOutcome:
        return admin_pb2.AdminOutcome()

    workers = [worker("a:1", ec_role="ec_producer"), worker("b:1")]
    for each in workers:
        each.administer, each.retired = administer, False
    request = admin_pb2.RouterAdminServiceAdministerRequest(command=admin_pb2.AdminCommand(**command), workers=named)
    context: Any = SimpleNamespace(time_remaining=lambda: None)
    answer = await RouterAdminServicer(lambda: workers).Administer(request, context)
    assert [each.address for each in answer.workers] == expected
