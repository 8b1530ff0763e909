"""Sums of small numbers, as text and as questions."""

from __future__ import annotations

from random import Random

from models.corpus.document import Turn

LARGEST = 20
"""Both operands of a sum and of a difference lie in 0..LARGEST; of a product in 0..10."""

QUESTIONS = (
    "What is {0} {2} {1}?",
    "What's {0} {2} {1}?",
    "{0} {2} {1}",
    "{0} {2} {1} =",
    "{0} {2} {1} = ?",
    "How much is {0} {2} {1}?",
    "Calculate {0} {2} {1}.",
    "Compute {0} {2} {1}.",
    "Tell me {0} {2} {1}.",
    "What is {0} {3} {1}?",
    "How much is {0} {3} {1}?",
    "Can you calculate {0} {3} {1}?",
    "{0}{2}{1}",
    "What is the result of {0} {2} {1}?",
)
HELD_OUT = (
    "Can you tell me what {0} {2} {1} is?",
    "Please work out {0} {3} {1}.",
    "I need the result of {0} {2} {1}.",
)
_WORDS = {"+": "plus", "-": "minus", "*": "times"}


def solve(left: int, right: int, sign: str) -> int:
    """Return the result of `left sign right`; sign is one of + - *."""
    return {"+": left + right, "-": left - right, "*": left * right}[sign]


def turn(left: int, right: int, sign: str, phrasing: str) -> Turn:
    """Return the question in the given phrasing and its answer."""
    result = solve(left, right, sign)
    return Turn(phrasing.format(left, right, sign, _WORDS[sign]), f"{left} {sign} {right} = {result}", str(result))


def operands(rng: Random) -> tuple[int, int, str]:
    """Return two small numbers and a sign. Additions are most frequent, and no difference is negative."""
    sign = rng.choices("+-*", (6, 2, 1))[0]
    largest = 10 if sign == "*" or rng.random() < 0.4 else LARGEST
    left, right = rng.randint(0, largest), rng.randint(0, largest)
    return (max(left, right), min(left, right), sign) if sign == "-" else (left, right, sign)


def question(rng: Random) -> Turn:
    """Return a random sum in a random training phrasing."""
    return turn(*operands(rng), rng.choice(QUESTIONS))


def plain(rng: Random) -> str:
    """Return one to six equations, separated by newlines or commas, or a sequence of numbers."""
    if rng.random() < 0.15:
        start = rng.randint(0, 40)
        return ", ".join(str(n) for n in range(start, start + rng.randint(5, 20)))
    lines = []
    for _ in range(rng.randint(1, 6)):
        left, right, sign = operands(rng)
        lines.append(f"{left} {sign} {right} = {solve(left, right, sign)}")
    return rng.choice(("\n", ", ")).join(lines)
