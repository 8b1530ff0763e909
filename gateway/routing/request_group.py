"""The sequences of one request as its client sees them: what they delivered, and the end of all."""

import asyncio
from collections.abc import Callable, Iterator, Sequence

import structlog

from gateway.body_budget import HeldBody
from gateway.generation.delta import OutputDelta, PromptDelta, TokenCounts
from gateway.generation.request import OutputOptions
from gateway.routing.failure import RequestFailure
from gateway.routing.live_request import LiveRequest
from gateway.routing.sequence import LiveSequence, Report
from protocol.bounds import MAX_TOKENS
from protocol.errors import ErrorCode
from protocol.events import Usage

TAKE_BYTES = 256 * 1024
"""Memory of the output that is taken at once, which takes one or two milliseconds to render."""

FREED_AT_ONCE = 4096
"""Tokens whose log-probabilities are freed in one turn of the event loop, which takes 6 ms."""

_log = structlog.get_logger("gateway.routing.request_group")


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
        self.sequences: list[LiveSequence] = []
        """In the order of their index. Set by the router, before they can change; none after `close`. Those that are
        made later follow."""
        self.deadline: asyncio.TimerHandle | None = None
        self.room = MAX_TOKENS
        """Tokens that are taken at once. Set by the router."""
        self.unread = False
        """The last `take` has left something."""
        self.on_give_way: Callable[[], None] | None = None
        """Called when the answer has to be ended while it is sent."""
        self._later: Iterator[LiveSequence] = iter(())
        """Makes its further sequences: one when another has ended. A request of many is not made in one turn of the
        event loop."""
        self._later_count = 0
        self._advance: Callable[[LiveSequence], None] | None = None
        self._sent: list[Report] = []
        """The log-probabilities of a whole answer, until it was sent."""
        self._with_tokens = output.with_tokens
        self._release = release

    @property
    def continued(self) -> bool:
        """A worker of another kind continued one of its sequences: its tokens may differ from there on."""
        return any(sequence.continued for sequence in self.sequences)

    def take(self) -> list[OutputDelta]:
        """New deltas, the oldest first: of all sequences, unless `unread` is true afterwards."""
        return self._take(self.room)

    def take_all(self) -> list[OutputDelta]:
        """The deltas of a whole answer."""
        deltas = self._take(2 * MAX_TOKENS * len(self.sequences))  # of each, a prompt and its answer
        self._sent = [report for delta in deltas for report in _reports(delta)]
        return deltas

    def _take(self, room: int) -> list[OutputDelta]:
        deltas: list[OutputDelta] = []
        left: dict[int, None] = {}
        for index in self._ready:
            sequence = self.sequences[index]
            if room > 0:
                room -= sequence.take_into(deltas, self._with_tokens, room)
                if room > 0 or not sequence.unread:
                    continue
            left[index] = None
        self._ready = left
        self._changed = self.unread = bool(left)
        return deltas

    def sequence_ended(self, index: int, failure: RequestFailure | None) -> None:
        super().sequence_ended(index, failure)
        if self._later_count and self.failure is None:
            try:
                self._begin_next()
            except Exception as error:  # noqa: BLE001  a bug: without its next sequence the request would never end
                _log.error("not_placed", request=self.request_id, exc_info=error)
                text = f"a part of it cannot be sent: {type(error).__name__}"
                self.failure = RequestFailure(ErrorCode.INTERNAL, text)
                self.drop_later()
                self._changed = True
                self._wake()
                # Those that live: one of them may be being handled.
                asyncio.get_running_loop().call_soon(self.cancel_nowait)

    def _begin_next(self) -> None:
        """Make the next of its further sequences, and admit it."""
        assert self._advance is not None
        sequence = next(self._later)
        self._later_count -= 1
        self.sequences.append(sequence)
        if not self._later_count:
            self._later = iter(())  # the iterator refers to all prompts, which the body does not count any more soon
        self._advance(sequence)

    def begin_later(self, later: Iterator[LiveSequence], count: int, advance: Callable[[LiveSequence], None]) -> None:
        """Take over `count` sequences that are not made yet: `advance` admits one when another has ended."""
        if count:
            self._later, self._later_count, self._advance = later, count, advance

    def drop_later(self) -> None:
        """Make no further sequences."""
        count, self._later_count, self._later = self._later_count, 0, iter(())
        self.never_made(count)

    def give_way(self, failure: RequestFailure) -> None:
        """End it with a failure, and drop what its client has not taken."""
        self.failure = self.failure or failure
        self._discard()
        self._ready.clear()
        self._changed = True
        self._wake()
        if self.on_give_way is not None:
            self.on_give_way()

    def close(self) -> None:
        """Cancel what still lives of it, and release its answer, which is read no more. Synchronous, repeatable."""
        self.cancel_nowait()
        self._discard()
        self._ready.clear()
        self.sequences = []  # they refer to it: all would wait for a garbage collection
        if self.answer is not None:
            self.answer.release()

    def _discard(self) -> None:
        reports, self._sent = self._sent, []
        for sequence in self.sequences:
            reports += sequence.discard()
        _free(reports)

    def cancel_nowait(self) -> None:
        self._release(self)

    def token_counts(self) -> TokenCounts:
        """The counts of the whole request. A prompt is cached as far as it was for the first of its sequences."""
        done = [sequence.usage or Usage(0, 0) for sequence in self.sequences]
        prompts = done[:: self.output.per_prompt]
        first = self.sequences[:: self.output.per_prompt]
        caches = [sequence.cache_counts for sequence in first]
        return TokenCounts(
            prompt=sum(usage.prompt_tokens for usage in prompts),
            completion=sum(usage.completion_tokens for usage in done),
            cached=sum(cached for cached, _ in caches),
            created=sum(created for _, created in caches),
            prefill_ms=sum(usage.prefill_ms for usage in prompts),
            decode_ms=sum(usage.decode_ms for usage in done),
            sparse_kept=sum(each.sparse_kept_tokens for each in first),
            reasoning=sum(usage.reasoning_tokens for usage in done),
        )


def _reports(delta: OutputDelta) -> Sequence[Report]:
    return delta.prompt if isinstance(delta, PromptDelta) else delta.logprobs


def _free(reports: list[Report]) -> None:
    """Free log-probabilities that nothing else refers to, in several turns of the event loop if there are many."""
    del reports[-FREED_AT_ONCE:]
    if reports:
        asyncio.get_running_loop().call_soon(_free, reports)
