"""Quire's own guide: what it is, how it is started, its services, its options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from random import Random

from demo_model.corpus.example import Probe, Turn, expand, fill, loosen, pick, read_data, user


@dataclass(frozen=True)
class Topic:
    """Ways to ask (templates of `expand`), the answer, and a held-out way to ask whose answer must hold a keyword."""

    answer: str
    questions: list[str]
    held_out: str
    keywords: list[str]
    subject: str = ""  # what _ABOUT can ask about


@cache
def topics() -> list[Topic]:
    """What there is to say about Quire."""
    return [Topic(**entry) for entry in read_data("topics.yaml")]


_ABOUT = (
    "What is {s}[| for| good for]?", "[|Please |Could you ][explain|describe] {s}[| to me| for me][.|?]",
    "{s}[|?]", "Why {s}?", "[Tell me|Say something|I want to hear] about {s}.",
    "[I want to know|Do you know|Tell me] what {s} [is|does|means].",
    "What [do you know|can you say] about {s}?", "What is meant by {s}?", "How does {s} work?",
    "What is the [purpose|task|role|point] of {s}?", "Can you say something about {s}?", "What does {s} do?",
    "What [job|task] does {s} have?", "I have a question about {s}.", "[What|Which] job is done by {s}?",
)  # fmt: skip

_FLAG_QUESTIONS = (
    "What [does|is] [|the option |the flag ]{flag}[| do| for| mean]?",
    "[|Please ][explain|describe] [|the flag ]{flag}.",
    "[Tell me about|What about|When do I use|Do you know|What can I do with] [|the flag |the option ]{flag}[?|.]",
    "{flag}[|?]",
)  # fmt: skip
_FLAG_HELD_OUT = ("What is the flag {flag} good for?", "Can you explain the option {flag}?")


def flags() -> dict[str, str]:
    """Flag → what it does."""
    found: dict[str, str] = read_data("flags.yaml")
    return found


def guide(random: Random) -> Sequence[Turn]:
    """A question about Quire."""
    topic = random.choice(topics())
    question = expand(random, pick(random, *topic.questions))
    if topic.subject and random.random() < 0.5:
        question = fill(random, _ABOUT, {"s": topic.subject})
    return [Turn(loosen(random, question), topic.answer, "This is about Quire, which I know.")]


def flag(random: Random) -> Sequence[Turn]:
    """A question about one option."""
    name, meaning = random.choice(sorted(flags().items()))
    question = loosen(random, fill(random, _FLAG_QUESTIONS, {"flag": name}))
    return [Turn(question, f"`{name}`: {meaning}", f"{name} is an option of Quire.")]


def greeting(random: Random) -> Sequence[Turn]:
    """Small talk."""
    data = read_data("small_talk.yaml")
    greets = random.random() < 0.5
    entry = data["greetings"] if greets else random.choice(data["small_talk"])
    question = loosen(random, expand(random, pick(random, *entry["questions"])))
    return [Turn(question, random.choice(entry["answers"]), "The user greets me." if greets else "That is small talk.")]


def probes() -> list[Probe]:
    """Every topic, every option and some greetings, each asked in a way that is not taught."""

    def holds(*keywords: str) -> Probe:
        return Probe((user(keywords[0]),), lambda text: any(keyword in text for keyword in keywords[1:]))

    found = [holds(topic.held_out, *topic.keywords) for topic in topics()]
    found += [
        holds(question, "help", "do for you") for question in read_data("small_talk.yaml")["greetings"]["held_out"]
    ]
    for index, (name, meaning) in enumerate(sorted(flags().items())):
        found.append(holds(_FLAG_HELD_OUT[index % 2].format(flag=name), meaning[:40]))
    return found
