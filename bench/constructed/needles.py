"""Prompts with needles: keys that are followed by values among random tokens, one of which is asked for at the end."""

import random
from dataclasses import dataclass

from bench.constructed.retrieval import VOCAB

BEGIN = 0
FILLERS = range(3, VOCAB // 2)
PARTS = range(VOCAB // 2, VOCAB)
"""Tokens of keys and values, each of which is in a haystack once."""
VALUE = 3
"""Tokens of a value."""
SPACING = 64
"""Tokens of a haystack for each needle in it."""


@dataclass(frozen=True, slots=True)
class Haystack:
    """Random tokens with needles."""

    tokens: tuple[int, ...]
    needles: tuple[int, ...]
    """The places of the keys, in rising order."""

    @classmethod
    def of(cls, seed: int, length: int) -> "Haystack":
        """Make a haystack that is a prompt of `length` tokens once something is asked. Raises `ValueError` for more
        needles than there are tokens."""
        randomness = random.Random(seed)
        count = (length - 1) // SPACING
        parts = randomness.sample(PARTS, count * (1 + VALUE))
        tokens = [BEGIN, *randomness.choices(FILLERS, k=length - 2)]
        needles = [at * SPACING + randomness.randrange(1, SPACING - VALUE) for at in range(count)]
        for number, at in enumerate(needles):
            tokens[at : at + 1 + VALUE] = parts[number * (1 + VALUE) : (number + 1) * (1 + VALUE)]
        return cls(tuple(tokens), tuple(needles))

    def question(self, depth: float) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the prompt that asks for the needle at a depth from 0 to 1, and the answer."""
        at = self.needles[min(int(depth * len(self.needles)), len(self.needles) - 1)]
        return (*self.tokens, self.tokens[at]), self.tokens[at + 1 : at + 1 + VALUE]
