"""What was said earlier in the conversation."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from demo_model.corpus.arithmetic import arithmetic
from demo_model.corpus.example import Probe, Turn, assistant, fill, loosen, pick, user
from demo_model.corpus.facts import facts
from demo_model.corpus.lists import lists
from demo_model.corpus.words import name, word

_MY_NAME = ("My name is {x}.", "I am {x}.", "I'm {x}.", "Hi, I'm {x}.", "Hello, my name is {x}!", "Call me {x}.",
            "You can call me {x}.", "This is {x} speaking.", "Hello! {x} here.")  # fmt: skip
_NICE = ("Nice to meet you, {x}!", "Hello {x}! How can I help?", "Hi {x}, what can I do for you?")
_WHO = ("What is my name?", "What's my name?", "Do you remember my name?", "Who am I?", "Can you tell me my name?",
        "How am I called?", "Do you know who I am?")  # fmt: skip
_IS = ("Your name is {x}.", "You are {x}.")
_COLORS = "red blue green black white pink orange purple".split()
_CITIES = "Paris Rome Oslo Lima Cairo Berlin Madrid Tokyo Boston Vienna".split()
_FACTS = (
    ("My favourite color is {x}.", "What is my favourite color?", "Your favourite color is {x}.", _COLORS),
    ("My dog is called {x}.", "What is my dog called?", "Your dog is called {x}.", None),
    ("My cat's name is {x}.", "What is my cat's name?", "Your cat's name is {x}.", None),
    ("I live in {x}.", "Where do I live?", "You live in {x}.", _CITIES),
    ("The password is {x}.", "What is the password?", "The password is {x}.", None),
    ("I was born in {x}.", "Where was I born?", "You were born in {x}.", _CITIES),
)  # fmt: skip
_NOTED = ("Okay, I will remember that.", "Good to know!", "Noted.")
_UNKNOWN = ("You have not told me your name yet.", "I don't know your name yet. What is it?")
_WHO_HELD_OUT = ("Tell me my name, please.", "Which name did I give you?", "Say my name.")


def memory(random: Random) -> Sequence[Turn]:
    """Something told, something else perhaps, and a question about it."""
    told, asked, answer = pick(random, _name, _name, _name, _fact)(random)
    between = [
        turn for _ in range(pick(random, 0, 0, 1, 1, 2)) for turn in pick(random, arithmetic, lists, facts)(random)
    ]
    return [told, *between, Turn(loosen(random, asked), answer, "I was told that earlier.")]


def unknown_name(random: Random) -> Sequence[Turn]:
    """Asked for a name that was not told."""
    return [Turn(loosen(random, pick(random, *_WHO)), pick(random, *_UNKNOWN), "No name was given so far.")]


def _name(random: Random) -> tuple[Turn, str, str]:
    x = {"x": name(random)}
    told = Turn(fill(random, _MY_NAME, x), fill(random, _NICE, x), f"The user is called {x['x']}. I greet back.")
    return told, pick(random, *_WHO), fill(random, _IS, x)


def _fact(random: Random) -> tuple[Turn, str, str]:
    told, asked, answer, choices = pick(random, *_FACTS)
    x = {"x": random.choice(choices) if choices else word(random).capitalize()}
    return Turn(told.format(**x), pick(random, *_NOTED), "I keep that in mind."), asked, answer.format(**x)


def name_probe(random: Random) -> Probe:
    """A made-up name, sometimes with another question between."""
    called = word(random).capitalize()
    x = {"x": called}
    messages = [user(fill(random, _MY_NAME, x)), assistant(fill(random, _NICE, x))]
    if random.random() < 0.5:
        (turn,) = arithmetic(random)
        messages += [user(turn.question), assistant(turn.answer)]
    messages.append(user(pick(random, *_WHO_HELD_OUT)))
    return Probe(tuple(messages), lambda text: called in text)
