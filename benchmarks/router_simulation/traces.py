"""Made-up traffic of several kinds, the same for the same seed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from types import MappingProxyType

from benchmarks.router_simulation.requests import Conversation, SimRequest, Text

# A trace is drawn by a function from (random, number of requests, where conversations begin) to conversations.
Starts = Iterator[float]


class Writer:
    """Numbers pieces of text and requests."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self._pieces = itertools.count(1)
        self._requests = itertools.count()

    def tokens(self, mean: float, spread: float = 0.6) -> int:
        """A length: lognormal, at least 4 tokens and at most six times the mean."""
        drawn = self.random.lognormvariate(0, spread) * mean / 2.718281828 ** (spread * spread / 2)
        return int(min(max(drawn, 4), 6 * mean))

    def piece(self) -> int:
        """A text that is like no other."""
        return next(self._pieces)

    def shared(self, count: int, mean: float) -> list[tuple[int, int]]:
        """(piece, tokens) of texts that many requests have in them."""
        return [(self.piece(), self.tokens(mean)) for _ in range(count)]

    def request(self, text: Text, output: float, session: int) -> SimRequest:
        """Asks for an answer to the text, and appends it there."""
        prompt_tokens, output_tokens = text.num_tokens, self.tokens(output)
        text.add(self.piece(), output_tokens)
        number = next(self._requests)
        return SimRequest(
            number, list(text.keys), prompt_tokens, output_tokens, session_id=str(session), tenant=str(session % 50)
        )


def _turns(writer: Writer, text: Text, session: int, turns: int, think: float, user: float, output: float) -> list[
    tuple[float, SimRequest]
]:  # fmt: skip
    made: list[tuple[float, SimRequest]] = []
    for turn in range(turns):
        text.add(writer.piece(), writer.tokens(user))
        seconds = writer.random.expovariate(1 / think) if turn else 0.0
        made.append((seconds, writer.request(text, output, session)))
    return made


def _zipf(random: Random, items: Sequence[tuple[int, int]]) -> tuple[int, int]:
    return random.choices(items, weights=[1 / (rank + 1) for rank in range(len(items))])[0]


def _single(writer: Writer, starts: Starts, requests: int, make: Callable[[], Text], output: float) -> list[
    Conversation
]:  # fmt: skip
    return [Conversation(next(starts), [(0.0, writer.request(make(), output, number))]) for number in range(requests)]


def unique(writer: Writer, starts: Starts, requests: int) -> list[Conversation]:
    """Prompts with nothing in common."""
    return _single(writer, starts, requests, lambda: Text().add(writer.piece(), writer.tokens(800)), 128)


def zipf(writer: Writer, starts: Starts, requests: int) -> list[Conversation]:
    """One of 200 system prompts of about 1,000 tokens, the n-th 1/n as often as the first, then 200 of one's own."""
    prompts = writer.shared(200, 1000)

    def make() -> Text:
        return Text().add(*_zipf(writer.random, prompts)).add(writer.piece(), writer.tokens(200))

    return _single(writer, starts, requests, make, 128)


def one_prefix(writer: Writer, starts: Starts, requests: int) -> list[Conversation]:
    """2,000 tokens that all requests begin with, then 200 of one's own."""
    prefix = (writer.piece(), 2000)
    return _single(
        writer, starts, requests, lambda: Text().add(*prefix).add(writer.piece(), writer.tokens(200)), 128
    )  # fmt: skip


def chat(writer: Writer, starts: Starts, requests: int) -> list[Conversation]:
    """Conversations of 2 to 10 turns, 4 s of thought between them, under one of 20 system prompts (Zipf)."""
    prompts = writer.shared(20, 400)
    made: list[Conversation] = []
    while requests > 0:
        turns = min(writer.random.randint(2, 10), requests)
        requests -= turns
        text = Text().add(*_zipf(writer.random, prompts))
        made.append(Conversation(next(starts), _turns(writer, text, len(made), turns, 4, 250, 150)))
    return made


def rag(writer: Writer, starts: Starts, requests: int) -> list[Conversation]:
    """One system prompt, four of 300 documents of about 600 tokens (Zipf) in any order, a short question."""
    system, documents = (writer.piece(), 300), writer.shared(300, 600)

    def make() -> Text:
        text = Text().add(*system)
        for _ in range(4):
            text.add(*_zipf(writer.random, documents))
        return text.add(writer.piece(), writer.tokens(40))

    return _single(writer, starts, requests, make, 128)


def agents(writer: Writer, starts: Starts, requests: int) -> list[Conversation]:
    """Tasks of 4 to 12 calls half a second apart; one of five instructions of 2,000 tokens, results of about 200."""
    prompts = [(writer.piece(), 2000) for _ in range(5)]
    made: list[Conversation] = []
    while requests > 0:
        turns = min(writer.random.randint(4, 12), requests)
        requests -= turns
        text = Text().add(*writer.random.choice(prompts))
        made.append(Conversation(next(starts), _turns(writer, text, len(made), turns, 0.5, 200, 60)))
    return made


def burst(writer: Writer, starts: Starts, requests: int) -> list[Conversation]:
    """A cold prefix of 2,000 tokens with 64 requests at once, again and again."""
    made: list[Conversation] = []
    start, prefix = 0.0, (0, 0)
    for number in range(requests):
        if not number % 64:
            start, prefix = next(starts), (writer.piece(), 2000)
        text = Text().add(*prefix).add(writer.piece(), writer.tokens(50))
        made.append(Conversation(start, [(0.0, writer.request(text, 128, number))]))
    return made


TRACES: Mapping[str, Callable[[Writer, Starts, int], list[Conversation]]] = MappingProxyType(
    {
        "unique": unique,
        "zipf": zipf,
        "one-prefix": one_prefix,
        "chat": chat,
        "rag": rag,
        "agents": agents,
        "burst": burst,
    }
)


def poisson(random: Random) -> Starts:
    """Arrivals at any time, as likely as at another."""
    while True:
        yield random.random()


def bursty(random: Random) -> Starts:
    """Half of all arrivals fall into a tenth of the time."""
    while True:
        share = random.random()
        if random.random() < 0.5:
            share = (int(share * 20) + 0.1 * random.random()) / 20
        yield share


ARRIVALS: Mapping[str, Callable[[Random], Starts]] = MappingProxyType({"poisson": poisson, "bursty": bursty})


def make_trace(name: str, requests: int, seed: int, arrivals: str = "poisson") -> list[Conversation]:
    """A trace's conversations."""
    random = Random(seed)
    return TRACES[name](Writer(random), ARRIVALS[arrivals](random), requests)
