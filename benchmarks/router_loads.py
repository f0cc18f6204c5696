"""Loads with shared prefixes, as routers see them: multi-turn chats, and system prompts shared by many requests."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass

from benchmarks.load import Result, Timings, complete

_FIRST_WORD = 258  # the first token with a text of its own; see models.byte_tokenizer


def words(source: random.Random, count: int, vocab_size: int) -> str:
    """A random text of `count` tokens."""
    return "".join(f"<{source.randrange(_FIRST_WORD, vocab_size)}>" for _ in range(count))


@dataclass(frozen=True)
class Server:
    """The server that requests go to."""

    port: int
    vocab_size: int

    async def complete(self, prompt: str, output_length: int) -> Timings:
        """Sends one request and waits for its end."""
        return await complete("127.0.0.1", self.port, "bench", prompt, output_length)


@dataclass(frozen=True)
class Chats:
    """Concurrent conversations. Each turn's prompt contains the whole conversation so far, with the model's answers."""

    name: str = "chats"
    conversations: int = 24
    turns: int = 5
    system_length: int = 64  # tokens of each conversation's own system prompt
    user_length: int = 96
    output_length: int = 32
    most_thinking: float = 4.0  # seconds between an answer and the next turn, uniformly drawn

    async def run(self, server: Server, seed: int) -> Result:
        """Runs it with texts that no other seed has."""
        begin = time.perf_counter()
        chats = await asyncio.gather(
            *(self._converse(server, random.Random(f"{seed}/{index}")) for index in range(self.conversations))
        )
        return Result(time.perf_counter() - begin, [timings for chat in chats for timings in chat])

    async def _converse(self, server: Server, source: random.Random) -> list[Timings]:
        history = words(source, self.system_length, server.vocab_size)
        turns = []
        for _ in range(self.turns):
            await asyncio.sleep(source.uniform(0, self.most_thinking))
            history += words(source, self.user_length, server.vocab_size)
            turns.append(await server.complete(history, self.output_length))
            history += turns[-1].text
        return turns


@dataclass(frozen=True)
class SharedPrefixes:
    """Clients whose prompts begin with one of a few system prompts, some of which are far more popular than others."""

    name: str = "shared prefixes"
    prefixes: int = 8
    prefix_length: int = 512
    user_length: int = 48
    output_length: int = 16
    clients: int = 12
    requests_per_client: int = 12
    most_thinking: float = 1.0  # seconds between an answer and the next request

    async def run(self, server: Server, seed: int) -> Result:
        """Runs it with texts that no other seed has."""
        source = random.Random(seed)
        prefixes = [words(source, self.prefix_length, server.vocab_size) for _ in range(self.prefixes)]
        zipf = [1 / rank for rank in range(1, self.prefixes + 1)]
        count = self.clients * self.requests_per_client
        prompts = [
            prefix + words(source, self.user_length, server.vocab_size)
            for prefix in source.choices(prefixes, zipf, k=count)
        ]

        async def client(index: int) -> list[Timings]:
            thinking = random.Random(f"{seed}/{index}")
            answers = []
            for prompt in prompts[index :: self.clients]:
                await asyncio.sleep(thinking.uniform(0, self.most_thinking))
                answers.append(await server.complete(prompt, self.output_length))
            return answers

        begin = time.perf_counter()
        answers = await asyncio.gather(*(client(index) for index in range(self.clients)))
        return Result(time.perf_counter() - begin, [timings for answer in answers for timings in answer])
