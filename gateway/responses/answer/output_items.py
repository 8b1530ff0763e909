"""Items of an answer while they are generated: each collects its deltas, and is written once when it ends."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import msgspec

from gateway.generation.delta import OutputDelta, ReasoningDelta, TextDelta, ToolCallDelta
from gateway.openai.logprobs import chat_logprobs
from gateway.responses.ids import output_item_id
from gateway.responses.items.reasoning import encode_reasoning
from protocol.events import Logprobs

Named = tuple[str, bytes]
"""The name of an event, and its fields but the type and the number, as JSON without braces."""
_encode = msgspec.json.Encoder().encode


class OutputItem(ABC):
    """One item of the output. Events name it by its id and its index."""

    kind: str

    def __init__(self, response: str, index: int) -> None:
        self.id = output_item_id(self.kind, response, index)
        self.done = b""
        """The whole item as JSON, once it has ended."""
        self._index = b'"output_index":%d' % index
        self._id = b'"item_id":"%s",' % self.id.encode() + self._index
        self._pieces: list[str] = []

    @abstractmethod
    def takes(self, delta: OutputDelta) -> bool:
        """The delta continues this item."""

    @abstractmethod
    def begin(self) -> list[Named]:
        """The events at its begin."""

    @abstractmethod
    def add(self, delta: OutputDelta) -> list[Named]:
        """Collect a delta. The events of it."""

    @abstractmethod
    def end(self, status: str) -> list[Named]:
        """Write the item. The events at its end."""

    def _added(self, item: bytes) -> Named:
        return "response.output_item.added", b'%s,"item":%s' % (self._index, item)

    def _ended(self, item: bytes) -> Named:
        self.done = item
        return "response.output_item.done", b'%s,"item":%s' % (self._index, item)

    def _joined(self) -> bytes:
        """All pieces as a JSON string."""
        return _encode("".join(self._pieces))


class _PartItem(OutputItem):
    """An item whose content is one part, of text."""

    part: str
    """The type of the part, and the name of its events."""

    def _part(self, text: bytes) -> bytes:
        return b'{"type":"%s","text":%s}' % (self.part.encode(), text)

    def _with_part(self, part: bytes) -> bytes:
        return b'%s,"content_index":0,"part":%s' % (self._id, part)

    @abstractmethod
    def _item(self, content: bytes, status: str) -> bytes:
        """The item with this content, a list."""

    def begin(self) -> list[Named]:
        part = self._with_part(self._part(b'""'))
        return [self._added(self._item(b"[]", "in_progress")), ("response.content_part.added", part)]

    def end(self, status: str) -> list[Named]:
        text = self._joined()
        part = self._part(text)
        return [
            (f"response.{self.part}.done", b'%s,"content_index":0,"text":%s%s' % (self._id, text, self._logprobs())),
            ("response.content_part.done", self._with_part(part)),
            self._ended(self._item(b"[%s]" % part, status)),
        ]

    def _logprobs(self) -> bytes:
        """The member of that name of an event that has text."""
        return b""


class MessageItem(_PartItem):
    """Text of the answer."""

    kind = "message"
    part = "output_text"

    def __init__(self, response: str, index: int) -> None:
        super().__init__(response, index)
        self._reports: list[bytes] = []
        """Log-probabilities as JSON, without brackets."""

    def takes(self, delta: OutputDelta) -> bool:
        return isinstance(delta, TextDelta)

    def add(self, delta: OutputDelta) -> list[Named]:
        assert isinstance(delta, TextDelta)
        reports = _reports(delta.logprobs)
        if not delta.text and not reports:
            return []
        self._pieces.append(delta.text)
        if reports:
            self._reports.append(reports)
        text = _encode(delta.text)
        fields = b'%s,"content_index":0,"delta":%s,"logprobs":[%s]' % (self._id, text, reports)
        return [("response.output_text.delta", fields)]

    def _logprobs(self) -> bytes:
        return b',"logprobs":[%s]' % b",".join(self._reports)

    def _part(self, text: bytes) -> bytes:
        return b'{"type":"output_text","text":%s,"annotations":[]%s}' % (text, self._logprobs())

    def _item(self, content: bytes, status: str) -> bytes:
        head = b'{"id":"%s","type":"message","status":"%s","role":"assistant"' % (self.id.encode(), status.encode())
        return b'%s,"content":%s}' % (head, content)


class ReasoningItem(_PartItem):
    """Text that the model thought before its answer."""

    kind = "reasoning"
    part = "reasoning_text"

    def __init__(self, response: str, index: int, encrypted: bool) -> None:
        """`encrypted`: the item has its `encrypted_content`."""
        super().__init__(response, index)
        self._encrypted = encrypted

    def takes(self, delta: OutputDelta) -> bool:
        return isinstance(delta, ReasoningDelta)

    def add(self, delta: OutputDelta) -> list[Named]:
        assert isinstance(delta, ReasoningDelta)
        if not delta.text:
            return []
        self._pieces.append(delta.text)
        fields = b'%s,"content_index":0,"delta":%s' % (self._id, _encode(delta.text))
        return [("response.reasoning_text.delta", fields)]

    def _item(self, content: bytes, status: str) -> bytes:
        head = b'{"id":"%s","type":"reasoning","status":"%s"' % (self.id.encode(), status.encode())
        secret = b""
        if self._encrypted and status != "in_progress":
            secret = b',"encrypted_content":' + _encode(encode_reasoning("".join(self._pieces)))
        return b'%s,"summary":[],"content":%s%s}' % (head, content, secret)


class FunctionCallItem(OutputItem):
    """A call of a function."""

    kind = "function_call"

    def __init__(self, response: str, index: int, call: ToolCallDelta) -> None:
        """`call` is the first delta of the call, which is still to be added."""
        super().__init__(response, index)
        self._call = call.call
        self._name = _encode(call.name)
        self._call_id = _encode(call.id)

    def takes(self, delta: OutputDelta) -> bool:
        return isinstance(delta, ToolCallDelta) and delta.call == self._call

    def begin(self) -> list[Named]:
        return [self._added(self._item(b'""', "in_progress"))]

    def add(self, delta: OutputDelta) -> list[Named]:
        assert isinstance(delta, ToolCallDelta)
        if not delta.arguments:
            return []
        self._pieces.append(delta.arguments)
        fields = b'%s,"delta":%s' % (self._id, _encode(delta.arguments))
        return [("response.function_call_arguments.delta", fields)]

    def end(self, status: str) -> list[Named]:
        arguments = self._joined()
        fields = b'%s,"name":%s,"arguments":%s' % (self._id, self._name, arguments)
        return [
            ("response.function_call_arguments.done", fields),
            self._ended(self._item(arguments, status)),
        ]

    def _item(self, arguments: bytes, status: str) -> bytes:
        head = b'{"id":"%s","type":"function_call","status":"%s"' % (self.id.encode(), status.encode())
        return b'%s,"call_id":%s,"name":%s,"arguments":%s}' % (head, self._call_id, self._name, arguments)


def _reports(logprobs: Sequence[Logprobs]) -> bytes:
    """Log-probabilities as JSON, without brackets."""
    return _encode(chat_logprobs(logprobs)["content"])[1:-1] if logprobs else b""
