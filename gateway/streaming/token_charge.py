"""Tokens that a request is charged for: those that it may use when it is admitted, and those that it has used."""

from collections.abc import Sequence

from gateway.generation.request import GenerationRequest
from gateway.keys.account import Reservation
from gateway.routing.admission.terms import prompt_tokens
from gateway.routing.request_group import RequestGroup
from gateway.routing.sequence import LiveSequence
from protocol.errors import ErrorCode


class TokenCharge:
    """The charge of one request. A prompt counts once, whatever was cached of it."""

    def __init__(self, request: GenerationRequest, context: int | None) -> None:
        """`context`: of the model, if it is known."""
        self._per_prompt = request.output.per_prompt
        sequences = request.sequences
        self._prompts = [prompt_tokens(each.input) for each in sequences[:: self._per_prompt]]
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
    """The tokens of one prompt. They are guessed if no worker reported them and one may have computed them."""
    counted = [sequence.usage.prompt_tokens for sequence in sequences if sequence.usage is not None]
    if counted:
        return counted[0]
    return guess if any(map(_may_be_computed, sequences)) else 0


def _may_be_computed(sequence: LiveSequence) -> bool:
    """The prompt was sent to a worker, and the client left, or set the time limit that ended it. Another failure before
    the first token is not charged."""
    failure = sequence.failure
    by_client = failure is None or failure.code is ErrorCode.DEADLINE
    return sequence.had_turn and (by_client or bool(sequence.tokens))


def _completion_tokens(sequence: LiveSequence) -> int:
    return len(sequence.tokens) if sequence.usage is None else sequence.usage.completion_tokens
