"""Answers as chunks: what never changes is encoded once an answer, and only the content is encoded for each token."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from gateway.errors import RequestError
from gateway.generation.delta import (
    OutputDelta,
    PromptDelta,
    ReasoningDelta,
    TextDelta,
    TokenCounts,
    ToolCallDelta,
    VectorDelta,
)
from gateway.openai.errors import DONE, error_object
from gateway.openai.fields import FINISH_REASONS, completion_text, extension, head_fields, stop_reason, usage
from gateway.openai.logprobs import CompletionLogprobs, chat_logprobs
from gateway.streaming.dialect import AnswerHead
from gateway.streaming.sse import END

_encode = msgspec.json.Encoder().encode


class _Chunks(ABC):
    """Implements `gateway.streaming.dialect.EventRenderer`: a chunk for each delta."""

    kind: str
    before_text: bytes
    """Between the index of a choice and its text."""
    after_content: bytes
    """Between the content of a choice and the rest of it."""

    def __init__(self, head: AnswerHead, *, include_usage: bool, token_ids: bool, logprobs: bool) -> None:
        self._head = b"data: " + _encode(head_fields(self.kind, head))[:-1]
        self._include_usage = include_usage
        self._token_ids = token_ids
        self._logprobs = logprobs
        # With `include_usage` every chunk but the last says that it has none.
        self._tail = b"}]" + (b',"usage":null}' if include_usage else b"}") + END
        self._before_reason = self.after_content + b',"logprobs":null,"finish_reason":'
        self._plain = self._before_reason + b"null" + self._tail
        self._by_token = token_ids or logprobs
        self._before: dict[int, bytes] = {}
        """The beginning of a choice's chunks, by its index."""

    def deltas(self, deltas: Sequence[OutputDelta]) -> list[bytes]:
        events: list[bytes] = []
        for delta in deltas:
            before = self._before.get(delta.index)
            if before is None:
                before = self._before[delta.index] = b'%s,"choices":[{"index":%d,' % (self._head, delta.index)
                events += self._begin(before)
            if type(delta) is TextDelta and delta.stop is None and not self._by_token:
                events.append(b"".join((before, self.before_text, _encode(delta.text), self._plain)))
            else:
                for part in _separate_end(delta):
                    if content := self._content(part):
                        events.append(b"".join((before, content, self._after(part))))
        return events

    def _after(self, delta: OutputDelta) -> bytes:
        reason = b"null" if delta.stop is None else _encode(FINISH_REASONS[delta.stop])
        ids = b',"token_ids":' + _encode(delta.tokens) if self._token_ids else b""
        before = self._before_reason
        if self._logprobs and (report := self._report(delta)) is not None:
            # The first null is theirs.
            before = before.replace(b"null", _encode(report), 1)
        return before + reason + stop_reason(delta) + ids + self._tail

    def end(self, counts: TokenCounts, *, continued: bool) -> list[bytes]:
        if not self._include_usage:
            return [DONE]
        fields = _encode({"choices": [], "usage": usage(counts)} | extension(continued))[1:]
        return [b"%s,%s%s" % (self._head, fields, END), DONE]

    def error(self, error: RequestError) -> list[bytes]:
        return [b"data: %s%s" % (error_object(error), END), DONE]

    @abstractmethod
    def _begin(self, before: bytes) -> list[bytes]:
        """The events before a choice's first content; `before` is the beginning of its chunks."""

    @abstractmethod
    def _content(self, delta: OutputDelta) -> bytes:
        """The fields of a choice that are generated; empty for no chunk."""

    @abstractmethod
    def _report(self, delta: OutputDelta) -> object | None:
        """The `logprobs` object; None for null."""


def _separate_end(delta: OutputDelta) -> Sequence[OutputDelta]:
    """Split the end of an answer from the beginning of a call: OpenAI's client does not report a call as done if the
    chunk with its name has the `finish_reason`, too."""
    if delta.stop is None or not isinstance(delta, ToolCallDelta) or not delta.name:
        return (delta,)
    end = TextDelta(index=delta.index, text="", stop=delta.stop, stopped_by=delta.stopped_by)
    return replace(delta, stop=None, stopped_by=None), end


class ChatChunks(_Chunks):
    """Chunks of a chat completion. The first one of a choice has its role."""

    kind = "chat.completion.chunk"
    before_text = b'"delta":{"content":'
    after_content = b"}"

    def __init__(
        self, head: AnswerHead, *, include_usage: bool, token_ids: bool, logprobs: bool, include_reasoning: bool = True
    ) -> None:
        super().__init__(head, include_usage=include_usage, token_ids=token_ids, logprobs=logprobs)
        self._include_reasoning = include_reasoning

    def _begin(self, before: bytes) -> list[bytes]:
        return [before + b'"delta":{"role":"assistant","content":""' + self._plain]

    def _content(self, delta: OutputDelta) -> bytes:
        if isinstance(delta, TextDelta):
            return self.before_text + _encode(delta.text) if delta.text else b'"delta":{'
        if isinstance(delta, ReasoningDelta):
            if not self._include_reasoning:
                return b'"delta":{' if self._by_token or delta.stop is not None else b""
            text = _encode(delta.text)
            return b'"delta":{"reasoning_content":%s,"reasoning":%s' % (text, text)
        if isinstance(delta, PromptDelta | VectorDelta):
            raise TypeError(f"a chunk of a chat has no place for a {type(delta).__name__}")
        call: dict[str, object] = {"index": delta.call}
        function = {"arguments": delta.arguments}
        if delta.id:
            call |= {"id": delta.id, "type": "function"}
        if delta.name:
            function = {"name": delta.name} | function
        return b'"delta":{"tool_calls":[%s]' % _encode(call | {"function": function})

    def _report(self, delta: OutputDelta) -> object | None:
        return chat_logprobs(delta.logprobs) if delta.logprobs else None


class CompletionChunks(_Chunks):
    """Chunks of a completion, whose output is text."""

    kind = "text_completion"
    before_text = b'"text":'
    after_content = b""

    def __init__(self, head: AnswerHead, *, include_usage: bool, token_ids: bool, logprobs: bool, top: int = 0) -> None:
        """`top`: see `CompletionLogprobs`."""
        super().__init__(head, include_usage=include_usage, token_ids=token_ids, logprobs=logprobs)
        self._top = top
        self._writers: dict[int, CompletionLogprobs] = {}

    def _begin(self, before: bytes) -> list[bytes]:
        return []

    def _content(self, delta: OutputDelta) -> bytes:
        return self.before_text + _encode(completion_text(delta))

    def _report(self, delta: OutputDelta) -> object | None:
        writer = self._writers.setdefault(delta.index, CompletionLogprobs(self._top))
        if isinstance(delta, PromptDelta):
            written = writer.write_prompt(delta.text, delta.prompt)
            return written if delta.prompt else None
        return writer.write(delta.logprobs) if delta.logprobs else None
