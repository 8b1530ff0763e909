"""Workers that send parsed output: reasoning, text and tool calls as segments, one token each."""

from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

import anyio.lowlevel

from protocol.events import Delta, ReasoningSegment, Segment, Step, TextSegment, ToolCallSegment, Usage
from tests.gateway.harness.fakes import FakeWorker
from tests.gateway.harness.serving import Served

Script = Callable[[Served], Coroutine[Any, Any, None]]


def call(index: int, name: str, *arguments: str) -> Iterator[Segment]:
    """The parts of one call."""
    yield ToolCallSegment(index, name)
    for part in arguments:
        yield ToolCallSegment(index, arguments=part)


def thought(*texts: str) -> Iterator[Segment]:
    return map(ReasoningSegment, texts)


def said(*texts: str) -> Iterator[Segment]:
    return map(TextSegment, texts)


def send(worker: FakeWorker, stream: int, token: int, *segments: Segment) -> None:
    """One step with one token."""
    worker.say(Step((Delta(stream, (token,), segments=segments),), worker.status.gauges))


def answering(*answers: Sequence[Segment]) -> Script:
    """Answer each request with the segments of one of these answers, in turn."""

    async def script(served: Served) -> None:
        for number, segments in enumerate(answers):
            submit = (await served.worker.wait_submits(number + 1))[number]
            for token, segment in enumerate(segments):
                send(served.worker, submit.stream, token, segment)
                await anyio.lowlevel.checkpoint()
            calls = any(isinstance(segment, ToolCallSegment) for segment in segments)
            reason: Any = "tool_calls" if calls else "stop"
            served.worker.finish(submit.stream, reason=reason, usage=Usage(4, len(segments)))

    return script
