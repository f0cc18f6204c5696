"""What was said earlier in the conversation."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from demo_model.corpus.arithmetic import arithmetic
from demo_model.corpus.example import Probe, Turn, assistant, fill, loosen, pick, user
from demo_model.corpus.facts import facts
from demo_model.corpus.lists import lists
from demo_model.corpus.words import name, word

_HI = "[|Hi! |Hi, |Hello! |Hey, |Okay, ]"
_MY_NAME = (_HI + "[My name is|I am|I'm|Call me|You can call me|The name is|I am called] {x}[.|!|]",
            "This is {x} speaking.", "[Hello!|Hi!] {x} here.")  # fmt: skip
_NICE = ("Nice to meet you, {x}!", "Hello {x}! How can I help?", "Hi {x}, what can I do for you?")
_WHO = ("[What is|What's|What was|And] my name[| again| now]?", "[Do you remember|Do you know|Can you say] my name?",
        "[Can you|Could you|Please] tell me my name[?|.]", "Who am I[| again]?", "How am I called?",
        "[Do you know|Do you remember|Now say|Tell me] who I am[?|.]", "[What|Which] name do I have?",
        "[What|Which] name did I [tell you|say]?", "What did I say my name [is|was]?", "I forgot my name[.| again.]",
        "You know my name, [right|don't you]?", "How do you call me?")  # fmt: skip
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
_WHO_HELD_OUT = ("Tell me my name again, please.", "Say my name.", "So what name did I tell you before?")


def memory(random: Random) -> Sequence[Turn]:
    """Something told, something else perhaps, and a question about it."""
    told, asked, answer = pick(random, _name, _name, _name, _fact)(random)
    between = [
        turn for _ in range(pick(random, 0, 0, 1, 1, 2)) for turn in pick(random, arithmetic, lists, facts)(random)
    ]
    return [told, *between, Turn(loosen(random, asked), answer, "I was told that earlier.")]


def unknown_name(random: Random) -> Sequence[Turn]:
    """Asked for a name that was not told."""
    return [Turn(loosen(random, fill(random, _WHO, {})), pick(random, *_UNKNOWN), "No name was given so far.")]


def _name(random: Random) -> tuple[Turn, str, str]:
    x = {"x": name(random)}
    told = Turn(fill(random, _MY_NAME, x), fill(random, _NICE, x), f"The user is called {x['x']}. I greet back.")
    return told, fill(random, _WHO, {}), fill(random, _IS, x)


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
