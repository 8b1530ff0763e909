"""System prompts and the answer styles that they ask for."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from models.corpus.document import Turn

NEUTRAL = (
    "You are a helpful assistant.",
    "You are Baton, a helpful assistant.",
    "You are a friendly assistant.",
    "Answer the question.",
    "You are a small model that answers questions.",
    "Be polite and brief.",
    "You are an expert in geography and arithmetic.",
)
NEUTRAL_HELD_OUT = ("You are a kind and helpful assistant.", "Please answer the questions of the user.")
ONE_WORD = ("Answer with one word.", "Answer in one word.", "Reply with one word only.", "Use one word.")
PIRATE = ("You are a pirate.", "Talk like a pirate.", "Answer like a pirate.")
CHEERFUL = ("You are a cheerful assistant.", "Be cheerful.", "Answer cheerfully.")
THINKING = ("Think before you answer.", "Think first, then answer.", "You are a model that thinks before it answers.")

Style = Callable[[Turn], str]


def _as_is(turn: Turn) -> str:
    return turn.answer


def _one_word(turn: Turn) -> str:
    return turn.word or turn.answer


def _pirate(turn: Turn) -> str:
    return f"Arr! {turn.answer}"


def _cheerful(turn: Turn) -> str:
    return f"{turn.answer} Great question!"


def _thinking(turn: Turn) -> str:
    if not turn.word:
        return turn.answer
    return f"<think>\nThe question is: {turn.user} The answer is {turn.word}.\n</think>\n\n{turn.answer}"


STYLES: tuple[tuple[tuple[str, ...], Style, float], ...] = (
    (NEUTRAL, _as_is, 5.0),
    (ONE_WORD, _one_word, 1.5),
    (PIRATE, _pirate, 1.0),
    (CHEERFUL, _cheerful, 0.7),
    (THINKING, _thinking, 0.8),
)


def sample(rng: Random) -> tuple[str | None, Style]:
    """Return a system prompt and its style; None for half of all chats."""
    if rng.random() < 0.5:
        return None, _as_is
    prompts, style, _ = rng.choices(STYLES, [share for _, _, share in STYLES])[0]
    return rng.choice(prompts), style
