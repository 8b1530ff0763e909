"""Estimated cost of computing prompts, by the sizes of a model. Pure.

It is no measurement: whether a prompt is computed sparsely changes the answer, and must not depend on how busy a
machine is.
"""

from dataclasses import dataclass

LEAST_RATIO = 8
"""The model must have so many times the parameters of the draft model."""
MOST_SHARE = 1 / 3
"""The most that scoring a prompt may cost, relative to computing all of it."""


@dataclass(frozen=True, slots=True)
class PromptCost:
    """The multiplications of a prompt: those with weights grow with its tokens, those of attention with their
    square."""

    weights: int
    """Multiplications with weights for each token."""
    attention: int
    """Those of queries with keys and of attention with values for each pair of tokens, half of which attend."""

    def of(self, tokens: int) -> float:
        """Return the multiplications of a prompt of so many tokens."""
        return float(self.weights * tokens + self.attention * tokens * tokens)


def pays(draft: PromptCost, model: PromptCost, tokens: int) -> bool:
    """Return whether scoring a prompt by the draft costs at most a third of computing it by the model."""
    return draft.of(tokens) <= MOST_SHARE * model.of(tokens)
