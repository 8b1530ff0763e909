"""One sequence of the output processor, from its admission to its terminal frame."""

from dataclasses import dataclass, field

from protocol.events import Delta, Logprobs, Segment, TextSegment
from protocol.request import FinishReason
from workers.output_formats.parser import OutputParser
from workers.process.prompts.answered_prefix import AnsweredPrefix
from workers.text.detokenizer import IncrementalDetokenizer


@dataclass(slots=True)
class OpenSequence:
    """One sequence from its admission to its terminal frame."""

    eos: frozenset[int]
    text: IncrementalDetokenizer | None
    """None for a model without a tokenizer, and for output that is parsed."""
    parser: OutputParser | None
    source: str
    """The request field of the prompt."""
    constrained_by: str
    """The request field of the constraint."""
    prompt_tokens: int
    completion_tokens: int
    tokenize_s: float = 0.0
    """Seconds from the receipt of the request to its admission."""
    has_output: bool = False
    """A token was generated."""
    stopped: bool = False
    """A stop string was found: later tokens are dropped."""
    tokens: list[int] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    keep_stop: bool = False
    """The token of `eos` that ends the answer is part of its text."""
    segments: list[Segment] = field(default_factory=list)
    top: int = 0
    """Number of most likely tokens to report with each token."""
    logprobs: list[Logprobs] = field(default_factory=list)
    prompt_top: int = 0
    """Number of most likely tokens to report with each token of the prompt."""
    stop_ids: frozenset[int] = frozenset()
    """The tokens of `eos` that the request itself has named."""
    last_token: int | None = None
    prefix: AnsweredPrefix | None = None
    """The digests of its prompt and its answer."""

    @property
    def reasoning_tokens(self) -> int:
        """Its tokens that are reasoning, resumed ones included."""
        return 0 if self.parser is None else self.parser.reasoning_tokens

    @property
    def ended_by_text(self) -> bool:
        """A stop string, or the only call, is complete."""
        output = self.text if self.parser is None else self.parser
        return output is not None and output.stopped

    def reason(self, reason: FinishReason) -> FinishReason:
        """Return why the answer ended; `reason` is the engine's."""
        ended = "stop" if self.stopped or self.ended_by_text else reason
        return ended if self.parser is None else self.parser.finish_reason(ended)

    def stop(self, reason: FinishReason) -> str | int | None:
        """Return the stop string or the token that the request named and that ended the answer; `reason` is that of
        the answer."""
        if reason != "stop":
            return None
        output = self.text if self.parser is None else self.parser
        if output is not None and output.stop is not None:
            return output.stop
        return self.last_token if self.last_token in self.stop_ids else None

    def push(self, token: int) -> None:
        """Add a token to the text or to the segments. Raises whatever a bug in text code raises."""
        if token in self.eos and not self.keep_stop:
            return
        if self.text is not None:
            self.pieces.append(self.text.push(token))
        elif self.parser is not None:
            self.segments += self.parser.push(token)

    def take_delta(self, stream: int) -> Delta:
        """Return what was added since the last call, which is not kept."""
        if self.parser is None:
            delta = Delta(stream, tuple(self.tokens), "".join(self.pieces), tuple(self.logprobs))
            self.pieces.clear()
        else:
            text, segments = self.take_parsed()
            delta = Delta(stream, tuple(self.tokens), text, tuple(self.logprobs), segments)
        self.tokens.clear()
        self.logprobs.clear()
        if self.prefix is not None:
            self.prefix.add(delta)
        return delta

    def take_parsed(self) -> tuple[str, tuple[Segment, ...]]:
        """Return new output of the parser, which is not kept: text, or segments if there is something else in it."""
        segments, self.segments = tuple(self.segments), []
        texts = [segment.text for segment in segments if isinstance(segment, TextSegment)]
        return ("".join(texts), ()) if len(texts) == len(segments) else ("", segments)
