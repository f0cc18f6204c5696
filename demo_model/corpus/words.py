"""Names, and words that nobody has seen before."""

from __future__ import annotations

from random import Random

_ONSETS = (
    "b bl br c ch cl cr d dr f fl fr g gl gr h j k kl kr l m n p pl pr qu r s sk sl sn sp st t th tr v w z".split()
)
_VOWELS = "a e i o u ai ea ee oo ou".split()
_CODAS = ["", "", "", *"b ck d g k l ll m n nd ng nk p r rn s sh st t x".split()]

FIRST_NAMES = (
    "Anna Ben Clara David Emma Felix Grace Hugo Iris Jonas Kira Leo Mia Noah Olga Paul Rosa Sam Tina Uma Victor Wendy "
    "Yara Zoe Alex Maria Peter Laura Simon Julia Omar Fatima Chen Wei Priya Ravi Yuki Kenji Ingrid Lars Sofia Mateo "
    "Lucia Diego Amara Kofi Nadia Ivan Elena Marco Bianca Tom Lucy Max Ella Oscar Nina Karl Eva Tim"
).split()


def word(random: Random) -> str:
    """A pronounceable word of one to three syllables."""
    syllables = random.choice((1, 2, 2, 2, 3))
    parts = [random.choice(_ONSETS) + random.choice(_VOWELS) + random.choice(_CODAS) for _ in range(syllables)]
    return "".join(parts)


def words(random: Random, count: int) -> list[str]:
    """Different words."""
    found: list[str] = []
    while len(found) < count:
        if (new := word(random)) not in found:
            found.append(new)
    return found


def name(random: Random) -> str:
    """A first name: a common one, or one made up."""
    return random.choice(FIRST_NAMES) if random.random() < 0.5 else word(random).capitalize()


EVERYDAY = (
    "apple river stone cloud chair table green yellow music winter summer garden paper window bread sugar coffee tiger "
    "rabbit engine pencil silver copper forest mountain ocean bridge castle doctor farmer teacher kitchen bottle "
    "basket candle mirror pillow ladder hammer rocket planet island valley desert market"
).split()


def everyday(random: Random, count: int) -> list[str]:
    """Different words, known and unknown ones mixed."""
    found: list[str] = []
    while len(found) < count:
        new = random.choice(EVERYDAY) if random.random() < 0.5 else word(random)
        if new not in found:
            found.append(new)
    return found
