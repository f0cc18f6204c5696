"""A network between router and worker that is slow, fragments messages, or swallows everything for a while."""

from __future__ import annotations

import pytest

from quire.rpc.settings import CHANNEL_ARGUMENTS, SERVER_ARGUMENTS
from quire.v1 import router_pb2
from tests.router.conftest import StartEngine, StartRouter
from tests.support.fake_engine import expected_tokens
from tests.support.router_client import generation
from tests.support.tcp_proxy import proxy_to
from tests.support.waiting import WAIT_SECONDS, eventually


@pytest.fixture
def patient_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine, a ping waits long behind the fragments sent before it."""
    for place, arguments in (("channel.CHANNEL", CHANNEL_ARGUMENTS), ("server.SERVER", SERVER_ARGUMENTS)):
        patient = dict(arguments) | {"grpc.http2.ping_timeout_ms": int(1000 * WAIT_SECONDS)}
        monkeypatch.setattr(f"quire.rpc.{place}_ARGUMENTS", tuple(patient.items()))


@pytest.mark.usefixtures("patient_pings")
async def test_a_slow_network_that_cuts_everything_up_only_delays(
    start_engine: StartEngine, start_router: StartRouter
) -> None:
    engine = await start_engine(step_seconds=0.02)
    async with proxy_to(engine.address) as proxy:
        proxy.piece_bytes, proxy.delay_seconds = 31, 0.0005
        running = await start_router(proxy.address)
        async with running.client.session() as session:
            for number in range(8):
                await session.start(number, generation([number], 20))
            for number in range(8):
                output = await session.outputs[number].wait_ended()
                assert (output.error, output.tokens[0], output.finals) == (None, expected_tokens([number], 20), 1)
        assert len(engine.record.started) == 8


@pytest.mark.slow
async def test_requests_behind_a_black_hole_go_on_elsewhere_and_it_is_used_again_when_it_heals(
    start_engine: StartEngine, start_router: StartRouter
) -> None:
    """The engine there keeps running; its late output is ignored once the network heals."""
    healthy, cut_off = await start_engine(step_seconds=0.02), await start_engine(step_seconds=0.02)
    async with proxy_to(cut_off.address) as proxy:
        running = await start_router(healthy.address, proxy.address, routing_policy="round_robin")
        async with running.client.session() as session:
            outputs = [await session.start(number, generation([number], 200)) for number in range(4)]
            for output in outputs:
                await output.wait_tokens()
            assert len(cut_off.live) == 2
            proxy.swallow()
            await running.client.wait_state(proxy.address, router_pb2.WORKER_STATE_UNREACHABLE)
            await (await session.start(10, generation([10], 3))).wait_ended()
            await eventually(lambda: len(healthy.record.started) == 5, "both go on there")
            proxy.heal()
            await running.client.wait_ready(proxy.address)
            for number in range(4):
                output = await session.outputs[number].wait_ended()
                assert (output.error, output.tokens[0]) == (None, expected_tokens([number], 200))
                assert output.finals == 1
            await eventually(lambda: not cut_off.live, "it lets go of what is elsewhere now")
            for number in range(20, 22):
                await (await session.start(number, generation([number], 3))).wait_ended()
            assert len({20, 21} & {each.prompt_token_ids[0] for each in cut_off.record.started}) == 1
