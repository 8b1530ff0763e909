"""A request, understood: which sequences it asks for, and how the answer is to be written."""

from dataclasses import dataclass

from protocol.request import Input, Limits, Sampling


@dataclass(frozen=True, slots=True)
class Choice:
    """One sequence that a request asks for, without the number that the router gives it."""

    input: Input
    sampling: Sampling
    limits: Limits
    salt: str = ""
    """It shares KV with requests of the same key that have the same."""


@dataclass(frozen=True, slots=True)
class Form:
    """How an answer is to be written: all that is kept of a request until its answer was taken."""

    chat: bool
    per_prompt: int
    """`n`: the choices `i * n .. i * n + n - 1` belong to prompt `i`."""
    stream: bool
    include_usage: bool
    return_token_ids: bool
    logprobs: bool
    """Every token is reported with its log-probability."""
    resume_s: float = 0.0
    """Seconds that the stream is kept for its client to come back; 0: its end is the client's."""

    @property
    def by_token(self) -> bool:
        """The answer tells of each token, not of text alone."""
        return self.return_token_ids or self.logprobs


@dataclass(frozen=True, slots=True)
class Plan:
    """A request, understood: the sequences in the order of their `index`, and the form of the answer."""

    model: str
    choices: tuple[Choice, ...]
    form: Form
