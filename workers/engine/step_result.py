"""What an engine step brings, and what its failures say: of their requests, of the model, or of its device."""

import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace

import structlog
from msgspec import Struct

from protocol.bounds import MAX_REASON
from protocol.errors import ErrorCode
from protocol.request import FinishReason
from workers.engine.runner import NotFiniteError
from workers.sampling.logprobs import RowLogprobs


class Token(Struct, frozen=True, gc=False):
    """One generated token. An end-of-sequence token is emitted as well, before its `SequenceEnd`."""

    stream: int
    token: int
    logprobs: RowLogprobs | None = None
    """Where `sampling.logprobs` asks for them."""


@dataclass(frozen=True, slots=True)
class SequenceEnd:
    """A sequence ended well: its only terminal. Times are in seconds."""

    stream: int
    reason: FinishReason
    prompt_tokens: int
    completion_tokens: int
    """Tokens generated, resumed ones and an end-of-sequence token included."""
    queue_s: float
    """From `submit` to its slot."""
    prefill_s: float
    """From its slot to its first new token."""
    decode_s: float
    """From its first new token to the end."""
    cached_tokens: int = 0
    """Prompt (and resumed) tokens whose cache rows were taken from another sequence."""


@dataclass(frozen=True, slots=True)
class SequenceFailure:
    """A sequence ended with an error: its only terminal."""

    stream: int
    code: ErrorCode
    text: str
    field: str = ""


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one engine step brought: tokens in the order of generation, then the terminals."""

    tokens: tuple[Token, ...]
    ends: tuple[SequenceEnd, ...]
    failures: tuple[SequenceFailure, ...]
    failed: bool
    """A call of the runner failed in this step."""


class RunningStep:
    """Owns what the running step has brought so far, and how many failed in a row before it."""

    def __init__(self) -> None:
        self.tokens: list[Token] = []
        self.ends: list[SequenceEnd] = []
        self.failures_in_a_row = 0
        """Steps that failed since the last one that did not. Those in which requests had no numbers do not count, as
        long as the model still gives some for others."""
        self._failures: list[SequenceFailure] = []
        self._failed = False
        self._non_finite = False
        """A row had no numbers: whether its request is at fault or the model is yet to be seen."""
        self._log = structlog.get_logger()

    def fail(self, stream: int, slot: int, call: str, error: Exception) -> None:
        """A request ends, for this is what a call of the runner raised for it."""
        non_finite = isinstance(error, NotFiniteError)
        self._non_finite |= non_finite
        self._failed |= not non_finite
        self._log.error("step_failed", stream=stream, slot=slot, call=call, trace=_trace(error))
        text = f"{call} failed: {type(error).__name__}: {error}"
        code = ErrorCode.NOT_FINITE if non_finite else ErrorCode.STEP
        self._failures.append(SequenceFailure(stream, code, text[:MAX_REASON]))

    def slot_failed(self, slot: int, error: Exception) -> None:
        """A slot could not be reset, which is no request's fault."""
        self._failed = True
        self._log.error("reset_failed", slot=slot, trace=_trace(error))

    def probe_failed(self, slot: int, error: Exception) -> None:
        """The model could not be asked whether it still gives numbers."""
        self._log.error("probe_failed", slot=slot, trace=_trace(error))

    def close(self, is_finite: Callable[[], bool]) -> StepResult:
        """The result; the next step begins. `is_finite` asks the model for numbers, where this brought none: else one
        client could have the worker leave, again and again, with prompts that make the model overflow."""
        failed = self._failed or self._non_finite
        if self._non_finite and not self.tokens and (self._failed or not is_finite()):
            self._failed = True  # it is the model or its device, and not these requests
            self._failures = [replace(failure, code=ErrorCode.STEP) for failure in self._failures]
        result = StepResult(tuple(self.tokens), tuple(self.ends), tuple(self._failures), failed)
        self.failures_in_a_row = self.failures_in_a_row + 1 if self._failed else 0
        self.tokens, self.ends, self._failures, self._failed, self._non_finite = [], [], [], False, False
        return result


def _trace(error: Exception) -> str:
    """The end of the traceback: a device's message can be of any length, and a log line cannot."""
    return "".join(traceback.format_exception(error))[-MAX_REASON:]
