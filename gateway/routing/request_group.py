"""The sequences of one request as its client sees them: what they delivered, and the end of all."""

import asyncio
from collections.abc import Callable, Sequence

from gateway.body_budget import HeldBody
from gateway.generation.delta import OutputDelta, TokenCounts
from gateway.generation.request import OutputOptions
from gateway.routing.live_request import LiveRequest
from gateway.routing.sequence import LiveSequence
from protocol.events import Usage


class RequestGroup(LiveRequest):
    """The sequences of one request, and the client's side of them: wait for a change, take, cancel."""

    def __init__(
        self,
        request_id: str,
        model: str,
        output: OutputOptions,
        body: HeldBody,
        count: int,
        release: Callable[["RequestGroup"], None],
    ) -> None:
        super().__init__(request_id, model, output, body, count)
        self.sequences: Sequence[LiveSequence] = ()
        """In the order of their index. Set by the router, before they can change."""
        self.deadline: asyncio.TimerHandle | None = None
        self._with_tokens = output.with_tokens
        self._release = release

    @property
    def continued(self) -> bool:
        """A worker of another kind continued one of its sequences: its tokens may differ from there on."""
        return any(sequence.continued for sequence in self.sequences)

    def take(self) -> list[OutputDelta]:
        """The new deltas of all sequences."""
        self._changed = False
        deltas: list[OutputDelta] = []
        for index in self._ready:
            self.sequences[index].take_into(deltas, self._with_tokens)
        self._ready.clear()
        return deltas

    def cancel_nowait(self) -> None:
        self._release(self)

    def token_counts(self) -> TokenCounts:
        """The counts of the whole request. A prompt is cached as far as it was for the first of its sequences."""
        done = [sequence.usage or Usage(0, 0) for sequence in self.sequences]
        prompts = done[:: self.output.per_prompt]
        return TokenCounts(
            prompt=sum(usage.prompt_tokens for usage in prompts),
            completion=sum(usage.completion_tokens for usage in done),
            # What a sequence resumes may be cached beyond its prompt.
            cached=sum(min(usage.cached_tokens, usage.prompt_tokens) for usage in prompts),
        )
