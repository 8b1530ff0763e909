"""Tokenize queue: builds prompts in the order of requests, the expensive ones on a thread.

A model's tokenizer takes a second for a megabyte of text, and the event loop must keep sending output meanwhile.
"""

from collections import deque
from collections.abc import Callable

import anyio
import anyio.lowlevel
import anyio.to_thread
import structlog

from protocol.bounds import clip
from protocol.commands import Submit, Tokenize
from protocol.errors import ErrorCode
from protocol.events import Failed, Finished, Tokenized, Usage
from workers.process.output_processor import OutputProcessor, SubmitResult
from workers.process.prompt_builder import PromptResult, build_or_error, input_cost, tokenize_cost
from workers.process.prompt_query import failed_query

MAX_INLINE_COST = 4096
"""Cost (see `workers.process.prompt_builder.tokenize_cost`) up to which a prompt is built on the event loop: this takes
a millisecond or two, not much more than passing it to a thread and back beside a busy engine."""
MAX_QUERIES = 64
"""Queries that wait. A further one is refused."""


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

        `on_admission` is called on the loop, in order, for each request that `submit` has queued and that was not
        cancelled, and `on_answer` for each query.
        """
        self._output = processor
        self._clock = clock
        self._on_admission = on_admission
        self._on_answer = on_answer
        self._waiting: dict[int, tuple[Submit, float]] = {}
        self._queries: deque[Tokenize] = deque()
        self._wakeup = anyio.Event()
        self._busy = False
        self._limiter = anyio.CapacityLimiter(1)
        self._log = structlog.get_logger()

    @property
    def live(self) -> int:
        """Number of sequences without a terminal frame, with and without a prompt."""
        return len(self._waiting) + self._output.live

    def is_live(self, stream: int) -> bool:
        """The stream has no terminal frame yet."""
        return stream in self._waiting or self._output.is_live(stream)

    def submit(self, submit: Submit) -> SubmitResult | None:
        """Admit or refuse a request; return None if it is queued."""
        if not self._waiting and not self._busy and tokenize_cost(submit) <= MAX_INLINE_COST:
            return self._admit(submit)
        if self._output.full(len(self._waiting)):
            text = f"{self.live} sequences are running or waiting already"
            return SubmitResult(None, Failed(submit.stream, ErrorCode.OVERLOADED, text))
        self._waiting[submit.stream] = submit, self._clock()
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
        """End a request that has no prompt yet; return None for any other. A build that runs on the thread is not
        interrupted."""
        if self._waiting.pop(stream, None) is None:
            return None
        return Finished(stream, "cancelled", Usage(0, 0))

    def fail_all(self, code: ErrorCode, text: str) -> list[Failed]:
        """End all requests, because the worker exits."""
        failed = [*self._output.fail_all(code, text), *(Failed(stream, code, text) for stream in self._waiting)]
        self._waiting.clear()
        return failed

    async def run(self) -> None:
        """Build prompts until cancelled."""
        while True:
            await self._wakeup.wait()
            self._wakeup = anyio.Event()
            while self._waiting or self._queries:
                if not self._waiting:
                    await self._answer(self._queries.popleft())
                    continue
                submit, arrived = next(iter(self._waiting.values()))
                self._busy = True
                prompt = await self._build_prompt(submit)
                self._busy = False
                if self._waiting.pop(submit.stream, None) is not None:
                    self._on_admission(self._admit(submit, prompt, arrived))

    async def _answer(self, asked: Tokenize) -> None:
        self._busy = True
        if input_cost(asked.input) <= MAX_INLINE_COST:
            await anyio.lowlevel.checkpoint()
            answer = self._output.answer(asked)
        else:
            answer = await anyio.to_thread.run_sync(
                self._output.answer, asked, limiter=self._limiter, abandon_on_cancel=True
            )
        self._busy = False
        self._on_answer(answer)

    async def _build_prompt(self, submit: Submit) -> PromptResult:
        if tokenize_cost(submit) <= MAX_INLINE_COST:
            await anyio.lowlevel.checkpoint()
            return build_or_error(self._output.build_prompt, submit)
        return await anyio.to_thread.run_sync(
            build_or_error, self._output.build_prompt, submit, limiter=self._limiter, abandon_on_cancel=True
        )

    def _admit(self, submit: Submit, prompt: PromptResult | None = None, arrived: float | None = None) -> SubmitResult:
        try:
            result = self._output.admit(submit, prompt, arrived)
        except BaseException as error:  # noqa: BLE001  a bug (or a panic of Rust code) must end this request only
            self._log.error("admission_failed", request=submit.request, stream=submit.stream, exc_info=error)
            text = clip(f"the prompt failed: {type(error).__name__}")
            return SubmitResult(None, Failed(submit.stream, ErrorCode.INTERNAL, text))
        refused = result.request is None
        self._log.debug("request_admitted", request=submit.request, stream=submit.stream, refused=refused)
        return result
