"""Charges clients for what they are served, and derives `Retry-After` from how fast their requests get turns."""

import math

from gateway.routing.admission.fair_shares import OUTPUT_COST
from gateway.routing.admission.turns import Turns
from gateway.routing.placement.wait_queue import WaitQueue
from gateway.routing.sequence import LiveSequence
from gateway.settings import GatewaySettings
from protocol.events import Usage

MAX_RETRY_AFTER_S = 600
"""The highest `Retry-After`, unless the setting is higher."""


class Charges:
    """Charges each sequence to the shares of its client, which the queue keeps for each model."""

    def __init__(self, queue: WaitQueue, settings: GatewaySettings) -> None:
        self._queue = queue
        self._least_s = settings.retry_after_s

    def begin(self, sequence: LiveSequence, held: float) -> None:
        """Charge the estimated prompt of a sequence that gets its first worker, less the share of it that the worker is
        expected to hold."""
        shares = self._turns(sequence).shares
        shares.begin(sequence.terms.client)
        sequence.charged = (1.0 - held) * sequence.terms.prompt_tokens
        shares.charge(sequence.terms.client, sequence.charged)

    def generated(self, sequence: LiveSequence, tokens: int) -> None:
        """Charge generated tokens."""
        self._turns(sequence).shares.charge(sequence.terms.client, OUTPUT_COST * tokens)

    def settle(self, sequence: LiveSequence, usage: Usage) -> None:
        """Replace the estimate of the prompt by the tokens that had to be computed."""
        uncached = max(0, usage.prompt_tokens - usage.cached_tokens)
        turns, client = self._turns(sequence), sequence.terms.client
        turns.shares.charge(client, uncached - sequence.charged)
        turns.note_cost(client, uncached + OUTPUT_COST * usage.completion_tokens)

    def retry_after_s(self, model: str, client: str) -> int:
        """Return the seconds after which a refused client should try again: when what it has in the queue will have
        had its turns, at the rate at which that happens now."""
        wait_s = self._queue.turns(model).wait_s(client)
        if wait_s is None:
            return self._least_s
        return min(max(self._least_s, math.ceil(wait_s)), max(self._least_s, MAX_RETRY_AFTER_S))

    def _turns(self, sequence: LiveSequence) -> Turns:
        return self._queue.turns(sequence.request.model)
