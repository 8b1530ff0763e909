"""A model in this process: one request at a time over the same engine, text and request table as a worker's.

What a session answers is what a worker answers, to the letter, because it runs the same code with a batch of one.
"""

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Self

from protocol.commands import Submit
from protocol.errors import ErrorCode
from protocol.events import Delta, Event, Failed, Finished, Logprobs, Step
from protocol.request import ChatInput, FinishReason, Input, Limits, Sampling, TextInput, TokensInput
from workers.engine.engine import BatchEngine
from workers.engine.request import GREEDY, Request, RequestRefused
from workers.load_options import Progress
from workers.process.loading import Loaded, load
from workers.process.output_processor import Delivery, Outcome
from workers.process.spec import WorkerSpec
from workers.text.vocabulary import Vocabulary

Prompt = str | Sequence[int] | Input
"""Text or token ids to go on from, or messages for the chat template."""


@dataclass(frozen=True, slots=True)
class SessionCapabilities:
    """What this session's model and device can do."""

    backend: str
    device: str
    dtype: str
    quantization: str
    """int8, int4 or both; empty when the matrices are of `dtype`."""
    context: int
    vocab_size: int
    text: bool
    """There is a tokenizer; without it prompts are token ids."""
    chat: bool
    """There is a chat template."""


@dataclass(frozen=True, slots=True)
class Generation:
    """A whole answer. `tokens` has what was generated, an end-of-sequence token included."""

    tokens: tuple[int, ...]
    text: str
    reason: FinishReason
    prompt_tokens: int
    completion_tokens: int
    logprobs: tuple[Logprobs, ...] = ()
    """One for each token, where `sampling.logprobs` asks for them."""


@dataclass(frozen=True, slots=True)
class Score:
    """`log_likelihoods[i]` is the natural log of the probability of `tokens[i + 1]`, given all before it."""

    tokens: tuple[int, ...]
    log_likelihoods: tuple[float, ...]

    @property
    def total(self) -> float:
        """The log-likelihood of all tokens but the first, given the first."""
        return sum(self.log_likelihoods)


class SessionError(Exception):
    """Raised where a worker would send `Failed`: the request was refused, or a step failed."""

    def __init__(self, code: ErrorCode, text: str, field: str = "") -> None:
        super().__init__(text)
        self.code = code
        self.field = field


class Session:
    """Owns an engine; used by the thread that opened it. One request at a time: the next one cancels the last."""

    def __init__(
        self, engine: BatchEngine, vocabulary: Vocabulary | None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._engine = engine
        self._vocabulary = vocabulary
        self._clock = clock
        self._streams = count(1)
        self._stream = 0
        # Tokens that a step brought beyond the one asked for, for `decode_step`.
        self._ready: list[int] = []
        self._running = False

    @classmethod
    def open(cls, spec: WorkerSpec, progress: Progress = lambda phase, done, total: None) -> Self:
        """Load the model of `spec`. Raises what `workers.process.loading.load` raises."""
        return cls.of(load(spec, progress))

    @classmethod
    def of(cls, loaded: Loaded) -> Self:
        """A session over what is loaded already."""
        return cls(loaded.engine, loaded.vocabulary)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def capabilities(self) -> SessionCapabilities:
        runner = self._engine.capabilities
        return SessionCapabilities(
            backend=runner.backend,
            device=runner.device,
            dtype=runner.dtype,
            quantization=runner.quantization,
            context=runner.context,
            vocab_size=runner.vocab_size,
            text=self._vocabulary is not None,
            chat=self._vocabulary is not None and self._vocabulary.chat is not None,
        )

    def prefill(self, prompt: Sequence[int], sampling: Sampling = GREEDY, *, eos: frozenset[int] = frozenset()) -> int:
        """Compute a prompt and return the first token after it. Raises `SessionError`."""
        stream = self._begin()
        self._submit(Request(stream, tuple(prompt), sampling, None, eos))
        self._running = True
        while not self._ready:
            self._step()
        return self._ready.pop(0)

    def decode_step(self) -> int | None:
        """The next token of the sequence that `prefill` began; None once it has ended. Raises `SessionError`."""
        while not self._ready and self._running:
            self._step()
        return self._ready.pop(0) if self._ready else None

    def stream(
        self, prompt: Prompt, sampling: Sampling = GREEDY, limits: Limits | None = None, *, resume: Sequence[int] = ()
    ) -> Generator[Delta | Finished, None, None]:
        """What a client would get: a `Delta` for each step, then one `Finished`. Closing the iterator cancels.

        Raises `SessionError` where a worker would send `Failed`.
        """
        stream = self._begin()
        delivery = Delivery(self._vocabulary, max_live=1, clock=self._clock, context=self._engine.capabilities.context)
        submit = Submit(stream, f"session-{stream}", _input(prompt), sampling, limits or Limits(), tuple(resume))
        admitted = delivery.admit(submit)
        if admitted.answer is not None:
            yield from _client_events([admitted.answer])
        if admitted.request is None:
            return
        self._submit(admitted.request)
        try:
            while delivery.live:
                if stream != self._stream:
                    raise SessionError(ErrorCode.INTERNAL, "another request of this session took its place")
                yield from _client_events(self._deliver(delivery))
        finally:
            self._engine.cancel(stream)

    def generate(
        self, prompt: Prompt, sampling: Sampling = GREEDY, limits: Limits | None = None, *, resume: Sequence[int] = ()
    ) -> Generation:
        """The whole answer. Raises `SessionError`."""
        tokens: list[int] = []
        text: list[str] = []
        logprobs: list[Logprobs] = []
        for event in self.stream(prompt, sampling, limits, resume=resume):
            tokens += event.tokens
            text.append(event.text)
            logprobs += event.logprobs
            if isinstance(event, Finished):
                usage = event.usage
                counts = usage.prompt_tokens, usage.completion_tokens
                return Generation(tuple(tokens), "".join(text), event.reason, *counts, tuple(logprobs))
        raise RuntimeError("the stream ended without a terminal")

    def score(self, prompt: str | Sequence[int]) -> Score:
        """Log-likelihoods of a text's tokens. Raises `SessionError`, and what the runner raises."""
        self._begin()
        if isinstance(prompt, str):
            if self._vocabulary is None:
                raise SessionError(ErrorCode.UNSUPPORTED, "the model has no tokenizer: give token ids", "prompt")
            prompt = self._vocabulary.encode(prompt, special=True)
        try:
            values = self._engine.score(prompt)
        except RequestRefused as refusal:
            raise SessionError(refusal.code, refusal.text, refusal.field) from refusal
        return Score(tuple(prompt), tuple(values.tolist()))

    def close(self) -> None:
        """Cancel what runs and free the device."""
        self._begin()
        self._engine.close()

    def _begin(self) -> int:
        """Cancel the last request and number the next one."""
        self._engine.cancel(self._stream)
        self._ready.clear()
        self._running = False
        self._stream = next(self._streams)
        return self._stream

    def _submit(self, request: Request) -> None:
        try:
            self._engine.submit(request)
        except RequestRefused as refusal:
            raise SessionError(refusal.code, refusal.text, refusal.field) from refusal

    def _step(self) -> None:
        result = self._engine.step()
        self._ready += [item.token for item in result.tokens]
        self._running = not (result.ends or result.failures)
        for failure in result.failures:
            raise SessionError(failure.code, failure.text, failure.field)

    def _deliver(self, delivery: Delivery) -> list[Event]:
        """One engine step, and the end of the stream when its stop string was found in it or its deadline passed."""
        engine = self._engine
        if expired := delivery.expire():
            return [*expired]
        delivered = delivery.deliver(Outcome(engine.step(), (), (), engine.gauges()))
        ends = tuple(end for stream in delivered.finish if (end := engine.finish(stream)) is not None)
        return delivered.frames + delivery.deliver(Outcome(None, ends, (), engine.gauges())).frames


def _client_events(events: Sequence[Event]) -> Iterator[Delta | Finished]:
    for event in events:
        match event:
            case Step(deltas=deltas):
                yield from deltas
            case Finished():
                yield event
            case Failed(code=code, text=text, field=field):
                raise SessionError(code, text, field)


def _input(prompt: Prompt) -> Input:
    if isinstance(prompt, str):
        return TextInput(prompt)
    if isinstance(prompt, TextInput | TokensInput | ChatInput):
        return prompt
    return TokensInput(tuple(prompt))
