"""Interface of what drafts for many sequences at once, with a state of its own for each, such as a smaller model."""

from collections.abc import Sequence
from typing import Protocol

from workers.engine.sequence import EngineSequence
from workers.engine.speculation.batched.open_draft import OpenDraft


class BatchDrafter(Protocol):
    """Drafts between two steps of the target, on the engine's thread. A wrong token costs time and changes nothing
    else.

    Its state of a sequence may lag behind the tokens of the sequence or be lost: what is missing is computed from
    `EngineSequence.tokens`, of which those that were drafted and not accepted are not part. An exception ends drafting
    by it in this worker, and no stream.
    """

    def follow(self, decoding: Sequence[EngineSequence]) -> None:
        """Drop the state of all other sequences: they have ended, or lost their slot. Called before each step."""

    def room(self, sequence: EngineSequence) -> int:
        """Return how many tokens can be drafted for a sequence at most, once nothing is missing; 0 if none can."""

    def missing(self, sequence: EngineSequence) -> int:
        """Return how many tokens of a sequence must be computed before anything can be drafted for it; 0 when it is
        ready."""

    def prepare(self, sequences: Sequence[EngineSequence], most: int) -> int:
        """Compute up to about `most` of the missing tokens of sequences, those of the first ones first, in one call.
        Returns how many were."""

    def draft(self, drafts: Sequence[OpenDraft]) -> None:
        """Append tokens to drafts of different sequences that are ready, until each one is done."""

    def settle(self) -> None:
        """Wait for background work that makes later calls faster."""

    def close(self) -> None:
        """Free what it holds. Nothing may be called afterwards."""
