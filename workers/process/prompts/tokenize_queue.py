"""Tokenize queue: builds prompts in the order of requests, the expensive ones on a thread, and compiles grammars.

A model's tokenizer takes a second for a megabyte of text, and the event loop must keep sending output meanwhile. A
grammar may take as long, on a second thread. Later requests do not wait for it: up to `MAX_OVERTAKEN` at a time are
overtaken by those that come after them.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import anyio
import anyio.lowlevel
import anyio.to_thread
import structlog
from anyio.abc import TaskGroup

from protocol.bounds import MAX_OVERTAKEN, clip
from protocol.commands import Submit, Tokenize
from protocol.errors import ErrorCode
from protocol.events import Failed, Finished, Tokenized, Usage
from workers.engine.request import Constraint
from workers.process.output_processor import OutputProcessor, SubmitResult
from workers.process.prompts.cost import input_cost, may_be_constrained, tokenize_cost
from workers.process.prompts.prompt_builder import PromptResult, TokenizedPrompt, build_or_error
from workers.process.prompts.prompt_query import failed_query
from workers.process.prompts.refusal import PromptRefused

MAX_INLINE_COST = 4096
"""Cost (see `workers.process.prompts.cost.tokenize_cost`) up to which a prompt is built on the event loop: this takes
a millisecond or two, not much more than passing it to a thread and back beside a busy engine."""
POOLED_INLINE_COST = 512
"""The same for a text that is embedded: dozens of them come together."""
MAX_QUERIES = 64
"""Queries that wait. A further one is refused."""


GRAMMAR_WAIT_S = 2.0
"""Time after which a request whose grammar is not compiled yet, and that must not be overtaken, is refused: those that
come after it wait for it."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A request without a prompt, or without its grammar."""

    submit: Submit
    arrived: float


class TokenizeQueue:
    """First come, first served: requests with short prompts also wait for an expensive one before them. Queries, which
    no answer waits for, are answered when no request waits.

    Owns the requests without a prompt; the output processor owns the others, and its bound holds for both.
    """

    def __init__(
        self,
        processor: OutputProcessor,
        clock: Callable[[], float],
        on_admission: Callable[[SubmitResult], None],
        on_answer: Callable[[Tokenized], None],
    ) -> None:
        """`clock` is that of the output processor.

        `on_admission` is called on the loop for each request that `submit` has queued and that was not cancelled, in
        order but for grammars that are compiled, and `on_answer` for each query.
        """
        self._output = processor
        self._clock = clock
        self._on_admission = on_admission
        self._on_answer = on_answer
        self._waiting: dict[int, _Waiting] = {}
        self._compiling: dict[int, _Waiting] = {}
        """Requests that later ones may overtake: their grammar is compiled."""
        self._overtaken: set[int] = set()
        """Requests that were admitted after later ones, until they have output."""
        self._queries: deque[Tokenize] = deque()
        self._wakeup = anyio.Event()
        self._busy = False
        self._limiter = anyio.CapacityLimiter(1)
        self._compile_limiter = anyio.CapacityLimiter(1)
        self._log = structlog.get_logger()

    @property
    def live(self) -> int:
        """Number of sequences without a terminal frame, with and without a prompt."""
        return len(self._waiting) + len(self._compiling) + self._output.live

    def is_live(self, stream: int) -> bool:
        """The stream has no terminal frame yet."""
        return stream in self._waiting or stream in self._compiling or self._output.is_live(stream)

    def submit(self, submit: Submit) -> SubmitResult | None:
        """Admit or refuse a request; return None if it is queued."""
        idle = not self._waiting and not self._busy
        most = MAX_INLINE_COST if submit.pooled is None else POOLED_INLINE_COST
        if idle and not may_be_constrained(submit) and tokenize_cost(submit) <= most:
            return self._admit(submit)
        if self._output.full(len(self._waiting) + len(self._compiling)):
            text = f"{self.live} sequences are running or waiting already"
            return SubmitResult(None, Failed(submit.stream, ErrorCode.OVERLOADED, text))
        self._waiting[submit.stream] = _Waiting(submit, self._clock())
        self._wakeup.set()
        return None

    def ask(self, asked: Tokenize) -> Tokenized | None:
        """Queue a query; return the refusal when too many wait."""
        if len(self._queries) >= MAX_QUERIES:
            return failed_query(asked, ErrorCode.OVERLOADED, f"{MAX_QUERIES} queries are waiting already")
        self._queries.append(asked)
        self._wakeup.set()
        return None

    def cancel(self, stream: int) -> Finished | None:
        """End a request that has no prompt or no grammar yet; return None for any other. What runs on a thread is not
        interrupted, but between two images."""
        if self._waiting.pop(stream, None) is None and self._compiling.pop(stream, None) is None:
            return None
        self._output.leave(stream)
        return Finished(stream, "cancelled", Usage(0, 0))

    def fail_all(self, code: ErrorCode, text: str) -> list[Failed]:
        """End all requests, because the worker exits."""
        queued = [*self._compiling, *self._waiting]
        failed = [*self._output.fail_all(code, text), *(Failed(stream, code, text) for stream in queued)]
        self._waiting.clear()
        self._compiling.clear()
        return failed

    async def run(self) -> None:
        """Build prompts until cancelled."""
        async with anyio.create_task_group() as compiles:
            while True:
                await self._wakeup.wait()
                self._wakeup = anyio.Event()
                while self._waiting or self._queries:
                    self._busy = True
                    if self._waiting:
                        await self._build_next(next(iter(self._waiting.values())), compiles)
                    else:
                        await self._answer(self._queries.popleft())
                    self._busy = False

    async def _build_next(self, waiting: _Waiting, compiles: TaskGroup) -> None:
        submit = waiting.submit
        prompt = await self._build_prompt(submit)
        if submit.stream not in self._waiting:
            return  # cancelled
        ready = isinstance(prompt, BaseException) or self._output.compiled(prompt)
        if not ready and not isinstance(prompt, BaseException) and self._may_overtake():
            self._compiling[submit.stream] = self._waiting.pop(submit.stream)
            self._output.overtake(submit.stream)
            compiles.start_soon(self._compile, waiting, prompt)
            return
        if not ready and self._clock() - waiting.arrived > GRAMMAR_WAIT_S:
            prompt = _too_many_grammars(prompt)
        constraint = None if isinstance(prompt, BaseException) else await self._build_constraint(submit, prompt)
        if self._waiting.pop(submit.stream, None) is not None:
            self._on_admission(self._admit(submit, prompt, waiting.arrived, constraint))

    def _may_overtake(self) -> bool:
        """Return whether one more request may be overtaken. A request counts until it has output, because the gateway
        takes the order of requests for that in which they get slots (see `MAX_OVERTAKEN`)."""
        self._overtaken = {stream for stream in self._overtaken if not self._output.has_output(stream)}
        return len(self._overtaken) + len(self._compiling) < MAX_OVERTAKEN

    async def _compile(self, waiting: _Waiting, prompt: TokenizedPrompt) -> None:
        """Admit a request once its grammar is compiled."""
        submit = waiting.submit
        constraint = await self._build_constraint(submit, prompt)
        if self._compiling.pop(submit.stream, None) is not None:
            self._overtaken.add(submit.stream)
            self._on_admission(self._admit(submit, prompt, waiting.arrived, constraint))

    async def _answer(self, asked: Tokenize) -> None:
        if input_cost(asked.input) <= MAX_INLINE_COST:
            await anyio.lowlevel.checkpoint()
            answer = self._output.answer(asked)
        else:
            answer = await anyio.to_thread.run_sync(
                self._output.answer, asked, limiter=self._limiter, abandon_on_cancel=True
            )
        self._on_answer(answer)

    async def _build_prompt(self, submit: Submit) -> PromptResult:
        if tokenize_cost(submit) <= MAX_INLINE_COST:
            await anyio.lowlevel.checkpoint()
            return build_or_error(self._output.build_prompt, submit)
        build = partial(self._output.build_prompt, wanted=lambda: submit.stream in self._waiting)
        return await anyio.to_thread.run_sync(
            build_or_error, build, submit, limiter=self._limiter, abandon_on_cancel=True
        )

    async def _build_constraint(self, submit: Submit, prompt: TokenizedPrompt) -> Constraint | BaseException | None:
        build = partial(self._output.build_constraint, prompt)
        unconstrained = prompt.grammar is None and submit.limits.reasoning_tokens is None
        compiled = self._output.compiled(prompt)
        if unconstrained or (compiled and tokenize_cost(submit) <= MAX_INLINE_COST):
            return build_or_error(build, submit)
        # Resumed tokens take as long on any thread, but they need not wait for the grammars of others.
        limiter = self._limiter if compiled else self._compile_limiter
        return await anyio.to_thread.run_sync(build_or_error, build, submit, limiter=limiter, abandon_on_cancel=True)

    def _admit(
        self,
        submit: Submit,
        prompt: PromptResult | None = None,
        arrived: float | None = None,
        constraint: Constraint | BaseException | None = None,
    ) -> SubmitResult:
        try:
            result = self._output.admit(submit, prompt, arrived, constraint)
        except BaseException as error:  # noqa: BLE001  a bug (or a panic of Rust code) must end this request only
            self._log.error("admission_failed", request=submit.request, stream=submit.stream, exc_info=error)
            text = clip(f"the prompt failed: {type(error).__name__}")
            return SubmitResult(None, Failed(submit.stream, ErrorCode.INTERNAL, text))
        refused = result.request is None
        self._log.debug("request_admitted", request=submit.request, stream=submit.stream, refused=refused)
        return result


def _too_many_grammars(prompt: PromptResult) -> PromptRefused:
    grammar = prompt.grammar if isinstance(prompt, TokenizedPrompt) else None
    field = "" if grammar is None else grammar.field
    text = f"the worker compiles many new grammars: send the request again, or leave `{field}` out"
    return PromptRefused(ErrorCode.OVERLOADED, text, field)
