"""Tokens that a request is charged for: those that it may use when it is admitted, and those that it has used."""

from collections.abc import Sequence

from gateway.generation.request import GenerationRequest
from gateway.keys.account import Reservation
from gateway.routing.request_group import RequestGroup
from gateway.routing.sequence import LiveSequence
from protocol.request import TokensInput

BYTES_PER_TOKEN = 3
"""Bytes of a body for each token of its prompts, while no worker has counted them."""


class TokenCharge:
    """The charge of one request. A prompt counts once, whatever was cached of it."""

    def __init__(self, request: GenerationRequest, body_bytes: int, context: int | None) -> None:
        """`body_bytes`: of the body, with what the server has stored of the conversation. `context`: of the model, if
        it is known."""
        self._per_prompt = request.output.per_prompt
        sequences = request.sequences
        prompts = [each.input for each in sequences[:: self._per_prompt]]
        guess = -(-body_bytes // (BYTES_PER_TOKEN * len(prompts)))
        self._prompts = [len(each.tokens) if isinstance(each, TokensInput) else guess for each in prompts]
        self._limits = [each.limits.max_tokens for each in sequences]
        self._context = context

    def most(self, minute: int) -> int:
        """The tokens that the request may use. Without a limit and a known context they are a `minute`'s."""
        total = sum(self._prompts)
        for index, limit in enumerate(self._limits):
            room = minute if self._context is None else self._context - self._prompts[index // self._per_prompt]
            total += max(0, room) if limit is None else limit
        return total

    def settle(self, group: RequestGroup, reservation: Reservation) -> None:
        """Settle what it has used, when its last sequence has ended."""
        every = group.sequences
        prompt = 0
        for number, guess in enumerate(self._prompts):
            prompt += _prompt_tokens(every[number * self._per_prompt : (number + 1) * self._per_prompt], guess)
        reservation.settle(prompt, sum(_completion_tokens(sequence) for sequence in every))


def _prompt_tokens(sequences: Sequence[LiveSequence], guess: int) -> int:
    """The tokens of one prompt. They are guessed for a client that has left before a worker reported them: the worker
    may have computed them. A failure before the first token is not charged."""
    counted = [sequence.usage.prompt_tokens for sequence in sequences if sequence.usage is not None]
    if counted:
        return counted[0]
    failed = all(sequence.failure is not None and not sequence.tokens for sequence in sequences)
    return 0 if failed else guess


def _completion_tokens(sequence: LiveSequence) -> int:
    return len(sequence.tokens) if sequence.usage is None else sequence.usage.completion_tokens
