"""Many concurrent streams, some cancelled, or the tokenizer service killed: the others are right, nothing leaks."""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import urllib.request

import openai
import pytest

from tests.support.stack import Stack
from tests.support.waiting import WAIT_SECONDS, eventually_now

pytestmark = pytest.mark.slow

STREAMS = 60


async def test_many_streams_with_cancellations(stack: Stack) -> None:
    source = random.Random(1)
    prompts = [[source.randrange(256) for _ in range(source.randrange(1, 200))] for _ in range(STREAMS)]
    lengths = [source.randrange(5, 60) for _ in range(STREAMS)]
    client = openai.AsyncOpenAI(base_url=f"{stack.url}/v1", api_key="unused", max_retries=0, timeout=100)

    async def run(index: int) -> str:
        stream = await client.completions.create(
            model="tiny", prompt=prompts[index], max_tokens=lengths[index], temperature=0, stream=True,
            extra_body={"ignore_eos": True},
        )  # fmt: skip
        text = ""
        async for chunk in stream:
            text += chunk.choices[0].text
            if index % 3 == 0 and source.random() < 0.3:
                await stream.close()
                break
        return text

    texts = await asyncio.gather(*(run(index) for index in range(STREAMS)))
    for index in range(1, STREAMS, 9):  # alone, the same prompt gives the same text
        if index % 3:
            alone = await client.completions.create(
                model="tiny", prompt=prompts[index], max_tokens=lengths[index], temperature=0,
                extra_body={"ignore_eos": True},
            )  # fmt: skip
            assert texts[index] == alone.choices[0].text
    await client.close()
    await assert_all_freed(stack)


async def test_streams_survive_the_death_of_the_tokenizer_service(stack: Stack) -> None:
    client = openai.AsyncOpenAI(base_url=f"{stack.url}/v1", api_key="unused", max_retries=0, timeout=100)
    begun: set[int] = set()

    async def run(index: int) -> str:
        stream = await client.completions.create(
            model="tiny", prompt=[index, 7, 9], max_tokens=500, temperature=0, stream=True,
            extra_body={"ignore_eos": True},
        )  # fmt: skip
        text = ""
        async for chunk in stream:
            begun.add(index)
            text += chunk.choices[0].text
        return text

    undisturbed = await asyncio.gather(*(run(index) for index in range(8)))
    for _ in range(5):  # the client may lag so far behind that no stream is left to lose
        begun.clear()
        streams = [asyncio.create_task(run(index)) for index in range(8)]
        while not begun:
            await asyncio.sleep(0.01)
        os.kill(stack.children()["tokenizer"], signal.SIGKILL)
        assert await asyncio.gather(*streams) == undisturbed
        if re.search(r"^quire_gateway_texts_moved_total [1-9]", scrape(stack), re.M):
            break
    else:
        raise AssertionError("the service was killed five times, and no stream had to be moved")
    await client.close()
    await assert_all_freed(stack)


def scrape(stack: Stack) -> str:
    with urllib.request.urlopen(f"{stack.url}/metrics", timeout=WAIT_SECONDS) as response:
        text: str = response.read().decode()
        return text


async def assert_all_freed(stack: Stack) -> None:
    """Asserts that soon nothing runs, waits or holds a block."""

    def held() -> dict[str, float]:
        text, names = scrape(stack), ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
        return {name: float(re.search(rf"^vllm:{name}{{.*}} (\S+)$", text, re.M)[1]) for name in names}  # type: ignore[index]  # a miss fails the test

    await asyncio.to_thread(eventually_now, lambda: not any(held().values()), "not all is freed")
