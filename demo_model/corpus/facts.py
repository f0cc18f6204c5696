"""Capitals and simple facts, and the honesty to say what is not known."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from demo_model.corpus.example import Turn, fill, loosen, pick, read_data
from demo_model.corpus.words import word

_CAPITAL = ("[What is|What's|Name|Tell me|Give me|Do you know] the capital[| city] of {c}[?|.]", "Capital of {c}?",
            "[Which|What] city is the capital of {c}?", "{c}: [what is its|the] capital?")  # fmt: skip
_COUNTRY = ("Which country has the capital {k}?", "{k} is the capital of which country?", "Where is {k}?")

_TOPICS = (
    "Who won the match yesterday?", "What is the weather today?", "What time is it?", "Who is the president?",
    "What will happen tomorrow?", "Who wrote {w}?", "What is a {w}?", "Where is {w}?", "Who is {w}?",
    "When was {w} built?", "What does {w} mean?", "How tall is {w}?", "What is the price of {w}?",
    "What is the capital of {w}?", "Tell me about {w}.", "Explain {w} to me.", "How old is {w}?",
    "What is the news?", "What is my phone number?", "How do I fix my car?", "Give me a recipe for {w}.",
)  # fmt: skip
_REFUSALS = ("I don't know that.", "Sorry, I don't know.", "I am a small model and don't know that.")


def facts(random: Random) -> Sequence[Turn]:
    """One fact."""
    data = read_data("facts.yaml")
    country, capital = random.choice(list(data["capitals"].items()))
    values = {"c": country, "k": capital}
    kind = random.random()
    if kind < 0.5:
        question, answer = fill(random, _CAPITAL, values), f"The capital of {country} is {capital}."
        return [Turn(loosen(random, question), answer, f"{country}: its capital is {capital}.")]
    if kind < 0.65:
        question, answer = fill(random, _COUNTRY, values), f"{capital} is the capital of {country}."
        return [Turn(loosen(random, question), answer, f"{capital} belongs to {country}.")]
    entry = random.choice(data["simple"])
    return [Turn(loosen(random, random.choice(entry["questions"])), entry["answer"], "That is a simple fact.")]


def refusal(random: Random) -> Sequence[Turn]:
    """A question that this model cannot answer."""
    capitalized = pick(random, True, False)
    thing = word(random)
    if capitalized:
        thing = thing.capitalize()
    return [
        Turn(loosen(random, fill(random, _TOPICS, {"w": thing})), pick(random, *_REFUSALS), "I have not learned that.")
    ]
