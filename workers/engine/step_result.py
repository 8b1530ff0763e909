"""Results of an engine step: tokens, ends and failures; and whether a failure is that of a request or of the model."""

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self

import structlog
from msgspec import Struct

from protocol.bounds import MAX_REASON
from protocol.errors import ErrorCode
from protocol.request import FinishReason
from workers.engine.request import ConstraintFailed
from workers.engine.runner import Chunk, NotFiniteError
from workers.engine.sparse.kept_rows import Ranges
from workers.sampling.logprobs import RowLogprobs


class Token(Struct, frozen=True, gc=False):
    """One generated token. An end-of-sequence token is emitted as well, before its `SequenceEnd`."""

    stream: int
    token: int
    logprobs: RowLogprobs | None = None
    """Set if `sampling.logprobs` is."""


class PromptPart(Struct, frozen=True, gc=False):
    """Log-probabilities of consecutive tokens of a prompt."""

    stream: int
    start: int
    """The position of the first of these tokens in the prompt."""
    tokens: tuple[int, ...]
    logprobs: tuple[RowLogprobs | None, ...]
    """One for each token; None for the first token of the prompt."""

    @classmethod
    def of(cls, stream: int, chunk: Chunk, targets: tuple[int, ...], values: Sequence[RowLogprobs]) -> Self:
        """Return the tokens after the rows of a chunk with their log-probabilities, and the first one of the prompt."""
        if chunk.start == 0:
            return cls(stream, 0, (chunk.tokens[0], *targets), (None, *values))
        return cls(stream, chunk.start + 1, targets, tuple(values))


@dataclass(frozen=True, slots=True)
class SequenceStart:
    """A sequence has its first new token. Times are in seconds."""

    stream: int
    queue_s: float
    """Time from `submit` to the slot."""
    prefill_s: float
    """Time from the slot to the token."""
    prompt_tokens: int
    """Prompt and resumed tokens."""
    cached_tokens: int
    """Those of them whose cache rows were taken from another sequence."""
    stored_tokens: int = 0
    """Those of the cached tokens whose rows were restored from the prefix tier."""
    kept: Ranges = ()
    """The ranges of the prompt that were computed, if the others were left out; empty if none were."""
    created_tokens: int = 0
    """As in `SequenceEnd`."""


@dataclass(frozen=True, slots=True)
class SequenceEnd:
    """Successful end of a sequence: its only terminal event. Times are in seconds."""

    stream: int
    reason: FinishReason
    prompt_tokens: int
    completion_tokens: int
    """Generated tokens, including resumed ones and an end-of-sequence token."""
    queue_s: float
    """Time from `submit` to the slot."""
    prefill_s: float
    """Time from the slot to the first new token."""
    decode_s: float
    """Time from the first new token to the end."""
    cached_tokens: int = 0
    """Prompt and resumed tokens whose cache rows were taken from another sequence."""
    created_tokens: int = 0
    """Prompt tokens of a pinned prefix that were computed and that the prefix tier keeps."""
    kept_tokens: int = 0
    """Prompt tokens that were computed, where others were left out; 0 where none were."""
    vector: bytes = b""
    """The vector of the prompt, in float32, little-endian, where its hidden states were pooled."""


@dataclass(frozen=True, slots=True)
class SequenceFailure:
    """Error end of a sequence: its only terminal event."""

    stream: int
    code: ErrorCode
    text: str
    field: str = ""


@dataclass(frozen=True, slots=True)
class StepResult:
    """Results of one engine step: tokens in the order of generation, then terminal events."""

    tokens: tuple[Token, ...]
    ends: tuple[SequenceEnd, ...]
    failures: tuple[SequenceFailure, ...]
    failed: bool
    """A call of the runner failed in this step, or a row had non-finite logits."""
    prompt_parts: tuple[PromptPart, ...] = ()
    """Those of a sequence come before its first token."""
    starts: tuple[SequenceStart, ...] = ()
    """Sequences whose first new token is among the tokens."""


class RunningStep:
    """Collects the results of the current step, and counts consecutive failed steps."""

    def __init__(self) -> None:
        self.tokens: list[Token] = []
        self.prompt_parts: list[PromptPart] = []
        self.starts: list[SequenceStart] = []
        self.ends: list[SequenceEnd] = []
        self.failures_in_a_row = 0
        """Consecutive failed steps. Steps with non-finite logits count only if the model has none that are finite."""
        self._failures: list[SequenceFailure] = []
        self._failed = False
        self._non_finite = False
        """A row had non-finite logits, because of its request or of the model."""
        self._log = structlog.get_logger()

    def fail(self, stream: int, slot: int, call: str, error: Exception) -> None:
        """Record that a request ends because a call of the runner raised `error` for it."""
        non_finite = isinstance(error, NotFiniteError)
        self._non_finite |= non_finite
        self._failed |= not non_finite
        self._log.error("step_failed", stream=stream, slot=slot, call=call, trace=_trace(error))
        text = f"{call} failed: {type(error).__name__}: {error}"
        code = ErrorCode.NOT_FINITE if non_finite else ErrorCode.STEP
        self._failures.append(SequenceFailure(stream, code, text[:MAX_REASON]))

    def image_failed(self, stream: int, field: str, error: Exception) -> None:
        """Record that a request ends because an image of it could not be computed. The step has failed, unless the
        image is to blame: its values overflow, or the tower cannot take it."""
        text = f"the image could not be computed: {type(error).__name__}: {error}"
        code = ErrorCode.STEP
        if isinstance(error, NotFiniteError):
            code = ErrorCode.NOT_FINITE
            text = "the image could not be computed: its rows are not finite"
        elif isinstance(error, ValueError):
            code = ErrorCode.INVALID
        self._failed |= code is ErrorCode.STEP
        self._log.error("image_failed", stream=stream, code=code.value, trace=_trace(error))
        self._failures.append(SequenceFailure(stream, code, text[:MAX_REASON], field))

    def constraint_failed(self, stream: int, error: Exception) -> None:
        """Record that a request ends because of its constraint. The step has not failed."""
        if isinstance(error, ConstraintFailed):
            failure = SequenceFailure(stream, ErrorCode.INVALID, str(error)[:MAX_REASON], error.field)
        else:
            self._log.error("constraint_failed", stream=stream, trace=_trace(error))
            failure = SequenceFailure(stream, ErrorCode.INTERNAL, f"the constraint failed: {type(error).__name__}")
        self._failures.append(failure)

    def waited_too_long(self, stream: int) -> None:
        """Record that a request ends because it waited as long as it may. The step has not failed."""
        text = "the request waited in the queue, and it should not wait longer"
        self._failures.append(SequenceFailure(stream, ErrorCode.QUEUE_TIMEOUT, text))

    def slot_failed(self, slot: int, error: Exception) -> None:
        """Record that a slot could not be reset, which is not the failure of a request."""
        self._failed = True
        self._log.error("reset_failed", slot=slot, trace=_trace(error))

    def probe_failed(self, slot: int, error: Exception) -> None:
        """Log that the check of the model's logits failed."""
        self._log.error("probe_failed", slot=slot, trace=_trace(error))

    def close(self, is_finite: Callable[[], bool]) -> StepResult:
        """Return the result and start the next step.

        `is_finite` checks the model; it is called if requests had non-finite logits and no token was generated. Without
        this check one client could make the worker restart repeatedly, with prompts that make the model overflow.
        """
        failed = self._failed or self._non_finite
        if self._non_finite and not self.tokens and (self._failed or not is_finite()):
            self._failed = True  # the model or its device is the cause, not these requests
            self._failures = [
                replace(failure, code=ErrorCode.STEP) if failure.code is ErrorCode.NOT_FINITE else failure
                for failure in self._failures
            ]
        parts, starts = tuple(self.prompt_parts), tuple(self.starts)
        result = StepResult(tuple(self.tokens), tuple(self.ends), tuple(self._failures), failed, parts, starts)
        self.failures_in_a_row = self.failures_in_a_row + 1 if self._failed else 0
        self.tokens, self.prompt_parts, self.starts, self.ends, self._failures = [], [], [], [], []
        self._failed = self._non_finite = False
        return result


def _trace(error: Exception) -> str:
    """Return the end of the traceback: a device's message has no bound, and a log line needs one."""
    return "".join(traceback.format_exception(error))[-MAX_REASON:]
