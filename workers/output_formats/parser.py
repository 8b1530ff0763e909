"""Parses the tokens of one answer: the counterpart of `workers.text.detokenizer` for output that is parsed."""

import codecs
import copy
from collections.abc import Sequence
from typing import Self

from protocol.events import ReasoningSegment, Segment, TextSegment
from protocol.request import FinishReason
from workers.output_formats.calls.characters import Reason
from workers.output_formats.calls.tool_schemas import ToolSchemas
from workers.output_formats.machine import OutputMachine
from workers.output_formats.parse_plan import ParsePlan
from workers.text.stops import StopScanner
from workers.text.tokenizer import Tokenizer

PROMPT_TOKENS = 64
"""Tokens at the end of a prompt in which a template may have begun the reasoning or a message."""
NO_TOOLS = ToolSchemas()


class OutputParser:
    """Turns generated tokens into segments as they are generated.

    A function of the tokens: how they are divided into steps makes no difference to the concatenated segments. Stop
    strings are looked for in text only, not in reasoning and not in calls, and not across them.
    """

    def __init__(
        self,
        plan: ParsePlan,
        tokenizer: Tokenizer,
        prompt: Sequence[int],
        stops: Sequence[str] = (),
        tools: ToolSchemas = NO_TOOLS,
        *,
        parallel: bool = True,
        keep_stop: bool = False,
    ) -> None:
        """Without `parallel`, the answer ends after the first call. With `keep_stop`, the text ends after a stop
        string."""
        self._symbols = plan.symbols
        self._piece = tokenizer.piece
        tail = self._text(prompt[-PROMPT_TOKENS:])
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._begun = False
        self.reasoning_tokens = 0
        """Tokens after which the output was within the reasoning: of its markers only the last token of the first
        one."""
        self._machine = OutputMachine(plan, tail, tools, parallel=parallel)
        self._scanner = StopScanner(stops, keep=keep_stop) if stops else None

    @property
    def stopped(self) -> bool:
        """A stop string or the only call is complete; nothing more is returned."""
        return self._machine.ended or (self._scanner is not None and self._scanner.stopped)

    @property
    def stop(self) -> str | None:
        """The stop string that is complete."""
        return None if self._scanner is None else self._scanner.found

    @property
    def reasoning(self) -> bool:
        """The output is within the reasoning."""
        return self._machine.reasoning

    @property
    def answering(self) -> bool:
        """The output is the text of the answer."""
        return self._machine.answering

    @property
    def held(self) -> str:
        """The beginning of what may be a marker, at the end of the output so far."""
        return self._machine.held

    @property
    def malformed(self) -> Sequence[Reason]:
        """Reasons for which text that began like a call is not one."""
        return self._machine.malformed

    def fork(self) -> Self | None:
        """Return a copy that parses on by itself. None where that is not possible: within a call, and with stop
        strings, which nothing needs that is drafted."""
        machine = None if self._scanner is not None else self._machine.fork()
        if machine is None:
            return None
        fork = copy.copy(self)
        fork._machine = machine
        fork._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        fork._decoder.setstate(self._decoder.getstate())
        return fork

    def push(self, token: int) -> list[Segment]:
        """Add a token and return the output that is certain now."""
        segments = self._push(token)
        self.reasoning_tokens += self._machine.reasoning
        return segments

    def _push(self, token: int) -> list[Segment]:
        symbol = self._symbols.get(token)
        if symbol is not None:
            self._machine.feed(self._decoder.decode(b"", True) + symbol)
            return self._stopped(self._machine.take())
        piece = self._piece(token)
        if not piece:
            return []
        if not self._begun:
            self._begun = True
            piece = self._piece(token, first=True)
        text = self._decoder.decode(piece)
        plain = self._machine.plain(text)
        if plain is None:
            self._machine.feed(text)
            segments = self._machine.take()
        elif not plain:
            return []
        elif self._machine.reasoning:
            return [ReasoningSegment(plain)]
        else:
            segments = [TextSegment(plain)]
        return segments if self._scanner is None else self._stopped(segments)

    def finish(self, reason: FinishReason) -> list[Segment]:
        """Return the output that was held back. `reason` is the engine's: without `stop` the answer was truncated."""
        if self.stopped:
            return []
        self._machine.feed(self._decoder.decode(b"", True))
        self._machine.finish(stopped=reason == "stop")
        segments = self._stopped(self._machine.take())
        if self._scanner is not None and not self.stopped and (held := self._scanner.finish()):
            segments.append(TextSegment(held))
        return segments

    def finish_reason(self, reason: FinishReason) -> FinishReason:
        """Return the reason of the end: calls are a reason of their own if the model ended its answer after them."""
        if self._scanner is not None and self._scanner.stopped:
            return "stop"
        machine = self._machine
        ended = machine.ended or reason == "stop"
        return "tool_calls" if ended and machine.complete_calls and not machine.broken else reason

    def _stopped(self, segments: list[Segment]) -> list[Segment]:
        """Return the segments up to a stop string."""
        scanner = self._scanner
        if scanner is None or not segments:
            return segments
        found: list[Segment] = []
        for segment in segments:
            if scanner.stopped:
                break
            text = scanner.push(segment.text) if isinstance(segment, TextSegment) else scanner.finish()
            if text:
                found.append(TextSegment(text))
            if not isinstance(segment, TextSegment):
                found.append(segment)
        return found

    def _text(self, tokens: Sequence[int]) -> str:
        """Return tokens in the characters of the machine."""
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        parts: list[str] = []
        for token in tokens:
            symbol = self._symbols.get(token)
            parts.append(decode(self._piece(token)) if symbol is None else decode(b"", True) + symbol)
        return "".join(parts)
