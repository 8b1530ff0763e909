"""What goes into the engine and what comes out of it: token ids only, no text and no frames."""

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import Struct

from protocol.bounds import MAX_SEED, MAX_TEMPERATURE, MAX_TOP_K
from protocol.errors import ErrorCode
from protocol.request import FinishReason, Sampling

GREEDY = Sampling()


@dataclass(frozen=True, slots=True)
class Request:
    """One sequence to generate. `eos` is empty where end-of-sequence tokens are to be ignored."""

    stream: int
    """The caller's number of this sequence; no two live sequences share one."""
    prompt: tuple[int, ...]
    sampling: Sampling = GREEDY
    max_tokens: int | None = None
    """Tokens to generate at most, resumed ones included; None is up to the end of the context."""
    eos: frozenset[int] = frozenset()
    resume: tuple[int, ...] = ()
    """Tokens that an earlier run generated already: they are not emitted again, and the answer goes on after them."""
    tenant: str = ""
    """Whose it is: cache rows are shared between sequences of one tenant only."""


class Token(Struct, frozen=True, gc=False):
    """One generated token. An end-of-sequence token is emitted as well, before its `End`."""

    stream: int
    token: int


@dataclass(frozen=True, slots=True)
class End:
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
class Failure:
    """A sequence ended with an error: its only terminal."""

    stream: int
    code: ErrorCode
    text: str
    field: str = ""


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one engine step brought: tokens in the order of generation, then the terminals."""

    tokens: tuple[Token, ...]
    ends: tuple[End, ...]
    failures: tuple[Failure, ...]
    failed: bool
    """A call of the runner failed in this step."""


class RequestRefused(Exception):
    """Raised by `submit`: the request was not taken, and nothing more will be heard of it."""

    def __init__(self, code: ErrorCode, text: str, field: str = "") -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.field = field


def check(request: Request, vocab_size: int, context: int) -> None:
    """Refuse a request that could not run on an empty engine.

    Raises `RequestRefused`: INVALID or CONTEXT, with the field at fault.
    """
    _check_tokens("prompt", request.prompt, vocab_size)
    _check_tokens("resume", request.resume, vocab_size)
    if not request.prompt:
        raise _invalid("prompt", "prompt must have at least one token")
    if request.max_tokens is not None and request.max_tokens < 1:
        raise _invalid("max_tokens", f"max_tokens must be at least 1, not {request.max_tokens}")
    if request.max_tokens is not None and len(request.resume) > request.max_tokens:
        raise _invalid("resume", f"resume has {len(request.resume)} tokens, more than max_tokens {request.max_tokens}")
    if not request.eos.isdisjoint(request.resume[:-1]):
        raise _invalid("resume", "resume goes on after an end-of-sequence token")
    if len(request.prompt) >= context:
        text = f"prompt of {len(request.prompt)} tokens leaves no room for an answer in a context of {context}"
        raise RequestRefused(ErrorCode.CONTEXT, text, "prompt")
    if len(request.prompt) + len(request.resume) > context:
        text = f"prompt and resume have {len(request.prompt) + len(request.resume)} tokens, the context is {context}"
        raise RequestRefused(ErrorCode.CONTEXT, text, "resume")
    check_sampling(request.sampling)


def check_score(tokens: Sequence[int], vocab_size: int, context: int) -> None:
    """Refuse tokens that cannot be scored. Raises `RequestRefused`: INVALID or CONTEXT, naming "prompt"."""
    _check_tokens("prompt", tokens, vocab_size)
    if not tokens:
        raise _invalid("prompt", "prompt must have at least one token")
    if len(tokens) > context:
        raise RequestRefused(ErrorCode.CONTEXT, f"prompt has {len(tokens)} tokens, the context is {context}", "prompt")


def check_sampling(sampling: Sampling) -> None:
    """Refuse sampling parameters out of their bounds, NaN included (which the wire's bounds let pass).

    Raises `RequestRefused` (INVALID) with the field at fault.
    """
    if not (0.0 <= sampling.temperature <= MAX_TEMPERATURE):
        raise _invalid("temperature", f"temperature must be within 0 and {MAX_TEMPERATURE}, not {sampling.temperature}")
    if not (0 <= sampling.top_k <= MAX_TOP_K):
        raise _invalid("top_k", f"top_k must be within 0 and {MAX_TOP_K}, not {sampling.top_k}")
    if not (0.0 < sampling.top_p <= 1.0):
        raise _invalid("top_p", f"top_p must be above 0 and at most 1, not {sampling.top_p}")
    if not (0.0 <= sampling.min_p <= 1.0):
        raise _invalid("min_p", f"min_p must be within 0 and 1, not {sampling.min_p}")
    if not (0 <= sampling.seed <= MAX_SEED):
        raise _invalid("seed", f"seed must be within 0 and {MAX_SEED}, not {sampling.seed}")


def _check_tokens(field: str, tokens: Sequence[int], vocab_size: int) -> None:
    if tokens and (min(tokens) < 0 or max(tokens) >= vocab_size):
        wrong = next(token for token in tokens if not 0 <= token < vocab_size)
        raise _invalid(field, f"{field} has token {wrong}, the vocabulary has {vocab_size}")


def _invalid(field: str, text: str) -> RequestRefused:
    return RequestRefused(ErrorCode.INVALID, text, field)
