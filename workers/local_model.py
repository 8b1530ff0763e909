"""A model in this process, without a worker: one request at a time.

Runs the same engine, text code and output processing as a worker, with a batch of one, so its answers are identical.
Users find it described in docs/library.md.
"""

import contextlib
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from protocol.commands import Submit
from protocol.errors import ErrorCode
from protocol.events import (
    Delta,
    Event,
    Failed,
    Finished,
    Gauges,
    Logprobs,
    PromptLogprobs,
    PromptToken,
    Segment,
    Step,
    TextSegment,
)
from protocol.request import EmbeddedInput, FinishReason, Grammar, Input, Limits, Sampling, TextInput, TokensInput
from workers.engine.engine import BatchEngine
from workers.engine.request import GREEDY, EngineRequest, RequestRefused
from workers.engine.step_result import SequenceEnd
from workers.grammar.compiler import GrammarCompiler
from workers.load_options import Progress
from workers.output_formats.formats.choice import NO_FORMATS, ChosenFormats
from workers.process.loading import Loaded, load
from workers.process.output_processor import EngineOutput, OutputProcessor
from workers.process.prompts.embedded_prompt import embedded_prompt, encoded_rows
from workers.process.prompts.images.image_source import ImageSource
from workers.process.prompts.refusal import PromptRefused
from workers.process.spec import WorkerSpec
from workers.text.tokenizer import Tokenizer

Prompt = str | Sequence[int] | Input
"""Text or token ids to continue, messages for the chat template, or what `mixed_prompt` returns."""


def mixed_prompt(*parts: Sequence[int] | NDArray[np.floating[Any]]) -> EmbeddedInput:
    """Return a prompt of token ids and of rows of embeddings, [count, hidden size] in float32 or float16, in any order.

    Each row takes the place of a token. A scale that the model applies to the rows of its own table is applied to them.
    Raises `InvalidEmbeddings` for an array of another shape or type.
    """
    segments = (encoded_rows(part) if isinstance(part, np.ndarray) else TokensInput(tuple(part)) for part in parts)
    return EmbeddedInput(tuple(segments))


@dataclass(frozen=True, slots=True)
class LocalModelCapabilities:
    """Features of a local model and its device."""

    backend: str
    device: str
    dtype: str
    quantization: str
    """`int8`, `int4` or both; empty if the weights are of `dtype`."""
    context: int
    vocab_size: int
    text: bool
    """The model has a tokenizer; without it prompts must be token ids."""
    chat: bool
    """The model has a chat template."""
    embedding_width: int
    """The hidden size, if prompts may have rows of embeddings; 0 if it was loaded without `embeddings`."""


@dataclass(frozen=True, slots=True)
class RequestStats:
    """Cost of one request."""

    prompt_tokens: int = 0
    """Tokens of the prompt, rows of embeddings included."""
    cached_tokens: int = 0
    """Those of them whose KV was reused."""
    completion_tokens: int = 0
    prefill_s: float = 0.0
    """Seconds from its start to the first token."""
    decode_s: float = 0.0
    """Seconds from the first token to the end."""
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    """Drafted tokens that are part of the answer."""


@dataclass(frozen=True, slots=True)
class LocalModelStats:
    """Counts since the model was loaded."""

    requests: int
    prefill_tokens: int
    """Prompt tokens that were computed."""
    cached_tokens: int
    """Prompt tokens whose KV was reused."""
    completion_tokens: int
    steps: int
    drafted_tokens: int
    accepted_tokens: int
    memory: Mapping[str, int]
    """Bytes by purpose: at least `weights` and `kv`."""


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """A complete answer. `tokens` includes a generated end-of-sequence token."""

    tokens: tuple[int, ...]
    text: str
    reason: FinishReason
    prompt_tokens: int
    completion_tokens: int
    logprobs: tuple[Logprobs, ...] = ()
    """One for each token, if `sampling.logprobs` is set."""
    segments: tuple[Segment, ...] = ()
    """Parsed output, with its text. It comes in parts: those of one call follow each other."""
    prompt: tuple[PromptToken, ...] = ()
    """The tokens of the prompt with their log-probabilities, if they were asked for."""
    stats: RequestStats = field(default_factory=RequestStats, compare=False)


@dataclass(frozen=True, slots=True)
class Score:
    """`log_likelihoods[i]` is the natural log of the probability of `tokens[i + 1]`, given all tokens before it."""

    tokens: tuple[int, ...]
    log_likelihoods: tuple[float, ...]

    @property
    def total(self) -> float:
        """Log-likelihood of all tokens after the first, given the first."""
        return sum(self.log_likelihoods)


class LocalModelError(Exception):
    """Raised where a worker would send `Failed`: the request is refused, or an engine step failed."""

    def __init__(self, code: ErrorCode, text: str, field: str = "") -> None:
        super().__init__(text)
        self.code = code
        self.field = field


class LocalModel:
    """Owns an engine. Used by the thread that opened it, for one request at a time: a new request cancels the last."""

    def __init__(
        self,
        engine: BatchEngine,
        tokenizer: Tokenizer | None,
        *,
        eos_ids: frozenset[int] = frozenset(),
        grammars: GrammarCompiler | None = None,
        formats: ChosenFormats = NO_FORMATS,
        images: ImageSource | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`eos_ids` end the answers of a model without a tokenizer. `grammars` is closed with the model. `images`
        prepares images, for a model with a vision tower."""
        self._grammars = grammars
        self._engine = engine
        self._tokenizer = tokenizer
        self._eos_ids = eos_ids
        self._formats = formats
        self._images = images
        self._clock = clock
        self._streams = count(1)
        self._stream = 0
        # Tokens that a step returned beyond the one that was asked for; `decode_step` returns them next.
        self._ready: list[int] = []
        self._running = False
        self._before = engine.gauges()
        """The counts when the last request began."""
        self._end: SequenceEnd | None = None
        """The end of the last request."""

    @classmethod
    def load(cls, path: str | Path, progress: Progress = lambda phase, done, total: None, **options: Any) -> Self:
        """Load the checkpoint in a directory. `options` are fields of `WorkerSpec`: `backend`, `device`, `dtype`,
        `quantize`, `context`, `max_batch_size`, `speculate`, `embeddings` and others.

        Raises `ValueError` that names an option which does not exist or has a wrong value, and what `open` raises.
        """
        fields = {"name": "local", "model_name": "local", "model_path": str(path), **options}
        try:
            spec = msgspec.convert(fields, WorkerSpec)
        except msgspec.ValidationError as error:
            raise ValueError(str(error)) from error
        return cls.open(spec, progress)

    @classmethod
    def open(cls, spec: WorkerSpec, progress: Progress = lambda phase, done, total: None) -> Self:
        """Load the model of `spec`. Raises what `workers.process.loading.load` raises."""
        return cls.of(load(spec, progress))

    @classmethod
    def of(cls, loaded: Loaded) -> Self:
        """Wrap a model that is loaded already."""
        return cls(
            loaded.engine,
            loaded.tokenizer,
            eos_ids=loaded.eos_ids,
            grammars=loaded.grammars,
            formats=loaded.formats,
            images=loaded.images,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def capabilities(self) -> LocalModelCapabilities:
        """Features of the model and its device."""
        runner = self._engine.capabilities
        return LocalModelCapabilities(
            backend=runner.backend,
            device=runner.device,
            dtype=runner.dtype,
            quantization=runner.quantization,
            context=runner.context,
            vocab_size=runner.vocab_size,
            text=self._tokenizer is not None,
            chat=self._tokenizer is not None and self._tokenizer.chat is not None,
            embedding_width=runner.embedding_width,
        )

    def stats(self) -> LocalModelStats:
        """Return the counts of all requests so far."""
        gauges = self._engine.gauges()
        return LocalModelStats(
            requests=gauges.sequences_started,
            prefill_tokens=gauges.prefill_tokens,
            cached_tokens=gauges.prefix_tokens,
            completion_tokens=gauges.decode_tokens,
            steps=gauges.steps,
            drafted_tokens=gauges.draft_tokens,
            accepted_tokens=gauges.accepted_tokens,
            memory=self._engine.memory(),
        )

    @property
    def last_request(self) -> RequestStats | None:
        """The cost of the last request, once it has ended; also of one whose stream was closed."""
        return None if self._end is None else _request_stats(self._end, self._before, self._engine.gauges())

    def prefill(
        self, prompt: Sequence[int] | EmbeddedInput, sampling: Sampling = GREEDY, *, eos: frozenset[int] = frozenset()
    ) -> int:
        """Compute a prompt and return the first token after it. Raises `LocalModelError`."""
        stream = self._begin()
        tokens, embeddings = tuple(prompt) if not isinstance(prompt, EmbeddedInput) else (), None
        if isinstance(prompt, EmbeddedInput):
            try:
                tokens, embeddings = embedded_prompt(prompt, self._engine.capabilities.context)
            except PromptRefused as refusal:
                raise LocalModelError(refusal.code, str(refusal), refusal.field) from refusal
        self._submit(EngineRequest(stream, tokens, sampling, None, eos, embeddings=embeddings))
        self._running = True
        while not self._ready:
            self._step()
        return self._ready.pop(0)

    def decode_step(self) -> int | None:
        """Return the next token of the sequence that `prefill` started; None after its end. Raises
        `LocalModelError`."""
        while not self._ready and self._running:
            self._step()
        return self._ready.pop(0) if self._ready else None

    def stream(
        self,
        prompt: Prompt,
        sampling: Sampling = GREEDY,
        limits: Limits | None = None,
        *,
        resume: Sequence[int] = (),
        grammar: Grammar | None = None,
    ) -> Generator[Delta | Finished, None, None]:
        """Yield what a client would receive: a `Delta` for each step, then one `Finished`. Closing the iterator
        cancels.

        Raises `LocalModelError` where a worker would send `Failed`.
        """
        with contextlib.closing(self._events(prompt, sampling, limits, resume, grammar, None)) as events:
            for event in events:
                if not isinstance(event, PromptLogprobs):
                    yield event

    def _events(
        self,
        prompt: Prompt,
        sampling: Sampling,
        limits: Limits | None,
        resume: Sequence[int],
        grammar: Grammar | None,
        prompt_logprobs: int | None,
    ) -> Generator[PromptLogprobs | Delta | Finished, None, None]:
        """Like `stream`, with the log-probabilities of the prompt."""
        stream = self._begin()
        capabilities = self._engine.capabilities
        processor = OutputProcessor(
            self._tokenizer,
            max_live=1,
            clock=self._clock,
            context=capabilities.context,
            eos_ids=self._eos_ids,
            grammars=self._grammars,
            formats=self._formats,
            vocab_size=capabilities.vocab_size,
            images=self._images,
        )
        name, limits = f"local-{stream}", limits or Limits()
        submit = Submit(
            stream,
            name,
            _input(prompt),
            sampling,
            limits,
            tuple(resume),
            grammar=grammar,
            prompt_logprobs=prompt_logprobs,
        )
        result = processor.admit(submit)
        if result.answer is not None:
            yield from _client_events([result.answer])
        if result.request is None:
            return
        self._submit(result.request)
        try:
            while processor.live:
                if stream != self._stream:
                    raise LocalModelError(ErrorCode.INTERNAL, "another request to this model took its place")
                yield from _client_events(self._run_step(processor))
        finally:
            self._note(self._engine.cancel(stream))

    def generate(
        self,
        prompt: Prompt,
        sampling: Sampling = GREEDY,
        limits: Limits | None = None,
        *,
        resume: Sequence[int] = (),
        grammar: Grammar | None = None,
        prompt_logprobs: int | None = None,
    ) -> GenerationResult:
        """Return the complete answer. `prompt_logprobs` as in `Submit`. Raises `LocalModelError`."""
        tokens: list[int] = []
        text: list[str] = []
        logprobs: list[Logprobs] = []
        segments: list[Segment] = []
        scored: list[PromptToken] = []
        for event in self._events(prompt, sampling, limits, resume, grammar, prompt_logprobs):
            if isinstance(event, PromptLogprobs):
                scored += event.tokens
                continue
            tokens += event.tokens
            text.append(event.text)
            text += [segment.text for segment in event.segments if isinstance(segment, TextSegment)]
            segments += event.segments or ([TextSegment(event.text)] if event.text else [])
            logprobs += event.logprobs
            if isinstance(event, Finished):
                usage = event.usage
                counts = usage.prompt_tokens, usage.completion_tokens
                return GenerationResult(
                    tuple(tokens),
                    "".join(text),
                    event.reason,
                    *counts,
                    tuple(logprobs),
                    tuple(segments),
                    tuple(scored),
                    self.last_request or RequestStats(),
                )
        raise RuntimeError("the stream ended without a terminal")

    def score(self, prompt: str | Sequence[int]) -> Score:
        """Return the log-likelihoods of a text's tokens. Raises `LocalModelError`, and what the runner raises."""
        self._begin()
        if isinstance(prompt, str):
            if self._tokenizer is None:
                raise LocalModelError(ErrorCode.UNSUPPORTED, "the model has no tokenizer: give token ids", "prompt")
            prompt = self._tokenizer.encode(prompt, special=True)
        try:
            values = self._engine.score(prompt)
        except RequestRefused as refusal:
            raise LocalModelError(refusal.code, refusal.text, refusal.field) from refusal
        return Score(tuple(prompt), tuple(values.tolist()))

    def close(self) -> None:
        """Cancel the running request and free the device."""
        self._begin()
        self._engine.close()
        if self._grammars is not None:
            self._grammars.close()

    def _begin(self) -> int:
        """Cancel the last request and return the number of the next one."""
        self._engine.cancel(self._stream)
        self._ready.clear()
        self._running = False
        self._before, self._end = self._engine.gauges(), None
        self._stream = next(self._streams)
        return self._stream

    def _submit(self, request: EngineRequest) -> None:
        try:
            self._engine.submit(request)
        except RequestRefused as refusal:
            raise LocalModelError(refusal.code, refusal.text, refusal.field) from refusal

    def _step(self) -> None:
        result = self._engine.step()
        self._ready += [item.token for item in result.tokens]
        self._running = not (result.ends or result.failures)
        self._note(*result.ends)
        for failure in result.failures:
            raise LocalModelError(failure.code, failure.text, failure.field)

    def _note(self, *ends: SequenceEnd | None) -> None:
        """Keep the end of the last request."""
        self._end = next((end for end in ends if end is not None and end.stream == self._stream), self._end)

    def _run_step(self, processor: OutputProcessor) -> list[Event]:
        """Run one engine step; end the stream if a stop string was found in it, or if its deadline has passed."""
        engine = self._engine
        if expired := processor.expire():
            return [*expired]
        result = engine.step()
        processed = processor.process(EngineOutput(result, (), (), engine.gauges()))
        ends = tuple(end for stream in processed.finish if (end := engine.finish(stream)) is not None)
        self._note(*result.ends, *ends)
        return processed.frames + processor.process(EngineOutput(None, ends, (), engine.gauges())).frames


def _request_stats(end: SequenceEnd, before: Gauges, after: Gauges) -> RequestStats:
    """Return what a request has cost that ran alone between two counts."""
    return RequestStats(
        prompt_tokens=end.prompt_tokens,
        cached_tokens=end.cached_tokens,
        completion_tokens=end.completion_tokens,
        prefill_s=end.prefill_s,
        decode_s=end.decode_s,
        drafted_tokens=after.draft_tokens - before.draft_tokens,
        accepted_tokens=after.accepted_tokens - before.accepted_tokens,
    )


def _client_events(events: Sequence[Event]) -> Iterator[PromptLogprobs | Delta | Finished]:
    for event in events:
        match event:
            case PromptLogprobs():
                yield event
            case Step(deltas=deltas):
                yield from deltas
            case Finished():
                yield event
            case Failed(code=code, text=text, field=field):
                raise LocalModelError(code, text, field)


def _input(prompt: Prompt) -> Input:
    if isinstance(prompt, str):
        return TextInput(prompt)
    if isinstance(prompt, Input):
        return prompt
    return TokensInput(tuple(prompt))
