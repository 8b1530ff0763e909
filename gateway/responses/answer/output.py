"""The output of one answer: the items that its deltas make, in order."""

from collections.abc import Iterable, Iterator, Sequence

from msgspec import structs

from gateway.errors import invalid
from gateway.generation.answer_size import MAX_KEPT_LOGPROBS
from gateway.generation.delta import OutputDelta, ReasoningDelta, StopReason, TextDelta, ToolCallDelta
from gateway.responses.answer.output_items import FunctionCallItem, MessageItem, Named, OutputItem, ReasoningItem
from protocol.events import Logprobs

LIMIT_FIELD = "max_output_tokens"
"""The field that bounds the length of an answer."""


class Output:
    """Collects the deltas of one answer as items. Only the last item is not complete."""

    def __init__(self, response: str, *, encrypted: bool) -> None:
        """`encrypted`: reasoning has its `encrypted_content`."""
        self._response = response
        self._encrypted = encrypted
        self._items: list[OutputItem] = []
        self._waiting: list[Logprobs] = []
        """Those of tokens since the last item that is not a message, which may be the first ones of a text."""
        self.stop: StopReason | None = None
        """Why the answer stopped; None before its last delta."""
        self._logprobs = 0
        """Log-probabilities of a stream."""

    def collect(self, deltas: Sequence[OutputDelta]) -> None:
        """Collect the deltas of a whole answer."""
        for delta in map(self._noted, deltas):
            if self._begins(delta):
                self._items.append(self._make(delta))
            if self._continues(delta):
                self._items[-1].collect(delta)
        if not self._items:
            empty = self._empty()
            self._items.append(self._make(empty))
            self._items[-1].collect(empty)

    def add(self, deltas: Sequence[OutputDelta]) -> list[Named]:
        """Collect deltas. Returns the events that they cause. Raises `RequestError` for more log-probabilities than the
        last events may repeat."""
        events: list[Named] = []
        for delta in map(self._noted, deltas):
            self._count_logprobs(delta.logprobs)
            if self._begins(delta):
                events += self._begin(delta)
            if self._continues(delta):
                events += self._items[-1].add(delta)
        return events

    def end(self) -> list[Named]:
        """End the answer. One without any output has an empty message. Returns the events at its end."""
        events: list[Named] = []
        if not self._items:
            empty = self._empty()
            events = self._begin(empty) + self._items[-1].add(empty)
        return events + self._items[-1].end(self._last_status)

    def written(self, *, failed: bool = False) -> Iterator[Iterable[bytes]]:
        """The items as JSON, each in parts. `failed`: the answer did not end well."""
        for item in self._items[:-1]:
            yield item.parts("completed")
        for item in self._items[-1:]:
            yield item.parts("incomplete" if failed else self._last_status)

    def _count_logprobs(self, reports: Sequence[Logprobs]) -> None:
        """Only a request whose length nobody knew when it came can have too many: others are refused then."""
        self._logprobs += sum([1 + len(report.top) for report in reports])
        if self._logprobs > MAX_KEPT_LOGPROBS:
            text = (
                f"`{LIMIT_FIELD}`: a stream has {MAX_KEPT_LOGPROBS} log-probabilities at most; set "
                f"`{LIMIT_FIELD}`, ask for fewer log-probabilities, or do not stream the answer"
            )
            raise invalid(LIMIT_FIELD, text)

    @property
    def _last_status(self) -> str:
        return "incomplete" if self.stop is StopReason.LENGTH else "completed"

    def _noted(self, delta: OutputDelta) -> OutputDelta:
        """Note a delta. Returns it, with the log-probabilities that wait for it if it begins a message."""
        self.stop = delta.stop or self.stop
        if not isinstance(delta, TextDelta):
            self._waiting = []
            return delta
        if self._continues(delta):
            return delta
        self._waiting += delta.logprobs
        if not delta.text:
            return delta
        waiting, self._waiting = self._waiting, []
        return structs.replace(delta, logprobs=tuple(waiting))

    def _empty(self) -> TextDelta:
        """The message of an answer without any output."""
        return TextDelta(0, "", (), tuple(self._waiting))

    def _begins(self, delta: OutputDelta) -> bool:
        """The delta begins an item. The end of an answer does not, nor does a token that has added no text yet: it may
        be one of those between the parts of a call."""
        return not self._continues(delta) and (isinstance(delta, ToolCallDelta) or bool(delta.text))

    def _continues(self, delta: OutputDelta) -> bool:
        return bool(self._items) and self._items[-1].takes(delta)

    def _begin(self, delta: OutputDelta) -> list[Named]:
        events = self._items[-1].end("completed") if self._items else []
        self._items.append(self._make(delta))
        return events + self._items[-1].begin()

    def _make(self, delta: OutputDelta) -> OutputItem:
        index = len(self._items)
        if isinstance(delta, ToolCallDelta):
            return FunctionCallItem(self._response, index, delta)
        if isinstance(delta, ReasoningDelta):
            return ReasoningItem(self._response, index, self._encrypted)
        return MessageItem(self._response, index)
