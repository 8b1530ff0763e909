"""Separates the output of a model into text, reasoning and tool calls while it comes.

The result depends on the output alone, not on the pieces in which it comes: a decision is made at the character that
decides it. What is held back is bounded: the beginning of a marker, `MAX_SPACE` characters of white space, and
`MAX_HELD` characters of what may become a call, beyond which it is text.
"""

import copy
from typing import Self

from protocol.bounds import MAX_TOOL_CALLS
from protocol.events import Segment
from workers.output_formats.calls.channel_call import channel_call
from workers.output_formats.calls.characters import Characters, Malformed, Parser, Reason
from workers.output_formats.calls.context import CallContext
from workers.output_formats.calls.name_line import begins_call
from workers.output_formats.calls.region import region
from workers.output_formats.calls.tool_schemas import ToolSchemas
from workers.output_formats.channel_header import ChannelHeader
from workers.output_formats.formats.markers import MarkerScanner
from workers.output_formats.formats.model_format import ToolFormat
from workers.output_formats.parse_plan import Action, Mode, ParsePlan
from workers.output_formats.segment_list import SegmentList

MAX_HELD = 1 << 16
MAX_SPACE = 64
MAX_CHANNEL_HEADER = 1024
_PIECE = 256
"""Characters of the output that are parsed at once."""
_SPACE = " \t\r\n"


class OutputMachine:
    """Parses one answer, in the characters of `workers.output_formats.formats.markers.Vocabulary`."""

    def __init__(self, plan: ParsePlan, prompt: str, tools: ToolSchemas, *, parallel: bool = True) -> None:
        """`prompt` is the end of the prompt, which may have begun the reasoning."""
        self._plan = plan
        self._tools = tools
        self._parallel = parallel
        self._out = SegmentList()
        self._mode = Mode.TEXT
        self._held = ""
        """The beginning of what may be a marker."""
        self._space = ""
        """White space at the end of the text so far, which is dropped before a marker."""
        self._skip_space = False
        self._at_start = True
        """Nothing but white space came yet, or since a region or a dropped marker: a call without one may begin."""
        self._parser: Parser | None = None
        """The parser of the current region of calls."""
        self._chars = Characters(plan.labels)
        self._marker = ""
        """The marker of the region, with the white space before it, until a call began."""
        self._raw: list[str] = []
        """Characters of the region that are in no segment yet."""
        self._dropped = 0
        """Characters of the region before these."""
        self._calls = 0
        self._in_call = False
        self._in_segments = 0
        """Characters of the region that are in segments."""
        self.complete_calls = 0
        self.broken = False
        """A call began and did not end."""
        self.ended = False
        """The answer is complete: no further call is wanted."""
        self.malformed: list[Reason] = []
        """Reasons for which text that began like a call is not one."""
        self._header = ""
        self._in_message = plan.channels is None
        self._begin(prompt)

    @property
    def reasoning(self) -> bool:
        """The output is within the reasoning."""
        return self._mode is Mode.REASONING

    @property
    def answering(self) -> bool:
        """The output is the text of the answer."""
        return self._mode is Mode.TEXT and self._in_message and self._parser is None

    @property
    def held(self) -> str:
        """The beginning of what may be a marker."""
        return self._held

    def fork(self) -> Self | None:
        """Return a copy that parses on by itself, without the segments that were not taken. None within a region of
        calls, whose parser cannot be copied."""
        if self._parser is not None:
            return None
        fork = copy.copy(self)
        fork._out, fork._raw, fork.malformed = SegmentList(), self._raw.copy(), self.malformed.copy()
        return fork

    def take(self) -> list[Segment]:
        """Return what was parsed since the last call."""
        return self._out.take()

    def plain(self, text: str) -> str | None:
        """Take decoded text, without markers that are tokens, if it and what it completes is text or reasoning only.

        Returns what `feed` would make of it, at a fraction of the cost. None for text that `feed` has to take.
        """
        if self._parser is not None or self._held or self._skip_space or self._mode is Mode.HEADER:
            return None
        if (self._at_start and self._mode is Mode.TEXT) or self.ended:
            return None
        if not self._plan.scanners[self._mode].firsts.isdisjoint(text):
            return None
        return self._without_space(text)

    def feed(self, text: str) -> None:
        """Parse further output."""
        for at in range(0, len(text), _PIECE):  # what follows a marker is copied
            self._feed(text[at : at + _PIECE])

    def finish(self, *, stopped: bool) -> None:
        """Parse the end of the answer. `stopped`: the model ended it. Otherwise it was truncated, and a call with
        it."""
        if self._parser is not None and not self.ended:
            self._finish_call(stopped=stopped)
        held, self._held = self._held, ""
        if self._mode is Mode.HEADER:
            held = self._header + held
            self._mode = Mode.TEXT
        if held:
            self._write(held)
        space, self._space = self._space, ""
        self._emit(space)

    def _feed(self, text: str) -> None:
        while text and not self.ended:
            text = self._scan(text) if self._parser is None else self._feed_call(text)

    def _begin(self, prompt: str) -> None:
        plan = self._plan
        if plan.channels is not None:
            header = ChannelHeader.opened_by(prompt, plan.channels)
            if header is not None:
                self._mode, self._header = Mode.HEADER, header
        elif plan.reasoning is not None:
            _, marker, after = prompt.rpartition(plan.reasoning.open)
            if marker and not after.strip():
                self._mode, self._skip_space = Mode.REASONING, True

    # Text and reasoning

    def _scan(self, text: str) -> str:
        """Take text up to a marker, and return the rest."""
        text, self._held = self._held + text, ""
        if self._mode is Mode.TEXT and self._at_start:
            return self._scan_start(text)
        scanner = self._plan.scanners[self._mode]
        match = scanner.find(text)
        if match is None:
            keep = scanner.partial(text)
            self._write(text[: len(text) - keep])
            self._held = text[len(text) - keep :]
            return ""
        self._write(text[: match.start()])
        self._enter(self._mode, match[0])
        return text[match.end() :]

    def _scan_start(self, text: str) -> str:
        rest = text.lstrip(_SPACE)
        self._write(text[: len(text) - len(rest)])
        if not rest:
            return ""
        scanner: MarkerScanner = self._plan.scanners[Mode.START]
        if marker := scanner.at_start(rest):
            self._enter(Mode.START, marker)
            return rest[len(marker) :]
        if scanner.may_begin(rest):
            self._held = rest
            return ""
        tools = self._plan.tools
        named = begins_call(rest, self._tools.names) if tools is not None and tools.by_name else False
        if named is None:
            self._held = rest
            return ""
        self._at_start = False
        if named or (tools is not None and rest[0] in tools.bare):
            self._open_calls("", known_only=True)
        return rest

    def _enter(self, mode: Mode, marker: str) -> None:
        action = self._plan.actions[mode][marker]
        if action is Action.CALLS:
            if self._mode is Mode.REASONING:
                self._leave_reasoning()
            self._open_calls(marker, known_only=False)
            return
        self._space = ""
        if action is Action.REASONING:
            self._mode, self._skip_space = Mode.REASONING, True
        elif action is Action.TEXT:
            self._leave_reasoning()
        elif action is Action.HEADER:
            self._mode, self._header = Mode.HEADER, marker
        elif action is Action.MESSAGE:
            self._enter_message(marker)
        elif self._plan.channels is None:
            self._at_start = True  # a marker around text that is dropped: a call without a marker may follow

    def _leave_reasoning(self) -> None:
        self._mode, self._skip_space, self._at_start = Mode.TEXT, True, True
        self._space = ""
        self._in_message = self._plan.channels is None

    def _enter_message(self, marker: str) -> None:
        assert self._plan.channels is not None
        header = ChannelHeader.read(self._header, self._plan.channels)
        raw, self._header = self._header + marker, ""
        self._skip_space, self._in_message = False, True
        self._mode = Mode.TEXT
        if header.reasoning and self._plan.parses_reasoning:
            self._mode = Mode.REASONING
        elif header.tool and self._plan.parses_tools:
            self._marker = raw
            self._start(channel_call(self._context(known_only=False), header.tool))

    def _write(self, text: str) -> None:
        """Write text or reasoning, without white space before a marker."""
        if self._mode is Mode.HEADER:
            self._header += text
            if len(self._header) > MAX_CHANNEL_HEADER:
                text, self._header, self._mode = self._header, "", Mode.TEXT
                self._in_message = True
            else:
                return
        if self._skip_space:
            text = text.lstrip(_SPACE)
            if not text:
                return
            self._skip_space = False
        if not text:
            return
        self._emit(self._without_space(text))

    def _without_space(self, text: str) -> str:
        """Return text with the white space that was held back, and hold back that at its end."""
        if self._space:
            text = self._space + text
        end = len(text.rstrip(_SPACE))
        end += (len(text) - end) // MAX_SPACE * MAX_SPACE
        self._space = text[end:]
        return text[:end]

    def _emit(self, text: str) -> None:
        if not text:
            return
        text = self._plan.shown(text)
        if self._mode is Mode.REASONING:
            self._out.reasoning(text)
        else:
            self._out.text(text)

    # Calls; `begin`, `arguments`, `end` and `skip` implement `workers.output_formats.calls.context.CallSink`.

    def begin(self, name: str) -> None:
        """See `CallSink`."""
        if self._calls >= MAX_TOOL_CALLS:
            raise Malformed(Reason.TOO_MANY)
        self._out.begin_call(self._calls, name)
        self._calls += 1
        self._in_call = True
        self._marker, self._in_segments = "", self._chars.taken

    def arguments(self, text: str) -> None:
        """See `CallSink`."""
        if text:
            self._out.arguments(self._calls - 1, text)
            self._in_segments = self._chars.taken

    def end(self) -> None:
        """See `CallSink`."""
        self.complete_calls += 1
        self._in_call = False
        self._in_segments = self._chars.taken
        self.ended = not self._parallel

    def skip(self) -> None:
        """See `CallSink`."""
        self._in_segments = self._chars.taken

    def _context(self, *, known_only: bool) -> CallContext:
        self._chars = Characters(self._plan.labels)
        return CallContext(self._chars, self, self._tools, known_only)

    def _open_calls(self, marker: str, *, known_only: bool) -> None:
        tools = self._plan.tools
        assert isinstance(tools, ToolFormat)
        self._marker, self._space = self._space + marker, ""
        self._start(region(self._context(known_only=known_only), tools))

    def _start(self, parser: Parser) -> None:
        next(parser)
        self._parser = parser
        self._raw.clear()
        self._dropped = self._in_segments = 0

    def _feed_call(self, text: str) -> str:
        """Take the characters of calls, and return the rest."""
        assert self._parser is not None
        for index, character in enumerate(text):
            self._raw.append(character)
            try:
                self._parser.send(character)
                self._drop_raw()
                if len(self._raw) > MAX_HELD:
                    raise Malformed(Reason.TOO_LONG)
            except StopIteration:
                self._close_calls()
                return self._chars.unread() + text[index + 1 :]
            except Malformed as error:
                self._raw.pop()
                self._not_a_call(error.reason, truncated=False)
                return text[index:]
            if self.ended:
                return ""
        return ""

    def _drop_raw(self) -> None:
        """Drop the characters that are in segments."""
        if self._in_segments > self._dropped:
            del self._raw[: self._in_segments - self._dropped]
            self._dropped = self._in_segments

    def _finish_call(self, *, stopped: bool) -> None:
        assert self._parser is not None
        reason = Reason.TRUNCATED
        try:
            if stopped:
                self._parser.send("")
        except StopIteration:
            self._close_calls()
            return
        except Malformed as error:
            reason = error.reason
        self._not_a_call(reason, truncated=not stopped)

    def _close_calls(self) -> None:
        self._parser = None
        self._skip_space = self._at_start = True
        self._in_message = self._plan.channels is None

    def _not_a_call(self, reason: Reason, *, truncated: bool) -> None:
        """End the region: what is in no segment of it yet is text, unless the answer was truncated within a call."""
        self._drop_raw()
        raw = self._marker + "".join(self._raw)
        began, self._in_call = self._in_call, False
        self._parser = None
        self.broken = self.broken or began
        self._skip_space = self._at_start = False
        self._in_message = True
        if not truncated:
            self.malformed.append(reason)
        if not (truncated and began):
            self._write(raw)
