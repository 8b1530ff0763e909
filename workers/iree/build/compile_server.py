"""The compile process: traces graphs and compiles them, for as long as it is asked to.

Lines of JSON: first a `Recipe` with how many to compile at once, then a `Request` for each module. Every request is
answered by one `Answer`, in the order in which they are done. The end of standard input is the end of the process.
"""

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import BinaryIO

import msgspec
from msgspec import Struct

from workers.errors import LoadRefused
from workers.iree.build.compiler import CompileError
from workers.iree.build.recipe import Recipe


class Start(Struct, frozen=True):
    """How the process begins."""

    recipe: Recipe
    parallel: int
    """Modules that are compiled at once."""


class Request(Struct, frozen=True):
    """Compile one module with these graphs."""

    names: tuple[str, ...]
    key: str
    """What whoever asks would find the module by. Another key here would be of another program or model."""


class Answer(Struct, frozen=True):
    """The end of one request: where the module is, or why there is none."""

    names: tuple[str, ...]
    file: str = ""
    seconds: float = 0.0
    """What tracing and compiling took."""
    problem: str = ""
    refused: bool = False
    """The problem is one that a person must mend (`LoadRefused`)."""


class Job:
    """One compile process from its first line to its last."""

    def __init__(self, lines: BinaryIO, answers: BinaryIO) -> None:
        self._lines = lines
        self._answers = answers
        self._answering = Lock()

    def run(self) -> None:
        start = msgspec.json.decode(self._lines.readline(), type=Start)
        try:
            self._plan, self._compiler = start.recipe.plan(), start.recipe.compiler()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer to all that is asked
            for line in self._lines:
                self._answer(msgspec.json.decode(line, type=Request), error)
            return
        with ThreadPoolExecutor(start.parallel) as pool:
            for line in self._lines:
                request = msgspec.json.decode(line, type=Request)
                # Traced here, one after the other: tracing is Python, compiling is another process.
                began = time.perf_counter()
                if (text := self._trace(request)) is not None:
                    pool.submit(self._compile, request, text, time.perf_counter() - began)

    def _trace(self, request: Request) -> str | None:
        try:
            if self._compiler.key(self._plan.describe(request.names)) != request.key:
                raise CompileError("the model's config.json or this program changed since the worker started")
            return self._plan.module(request.names)
        except Exception as error:  # noqa: BLE001 - whatever a tracer raises is the answer
            self._answer(request, error)
            return None

    def _compile(self, request: Request, text: str, traced_s: float) -> None:
        began = time.perf_counter()
        try:
            file = self._compiler.compile(text, request.key)
        except Exception as error:  # noqa: BLE001 - as above
            self._answer(request, error)
        else:
            self._send(Answer(request.names, str(file), traced_s + time.perf_counter() - began))

    def _answer(self, request: Request, error: Exception) -> None:
        text = str(error) or type(error).__name__
        self._send(Answer(request.names, problem=text[:4000], refused=isinstance(error, LoadRefused)))

    def _send(self, answer: Answer) -> None:
        with self._answering:
            self._answers.write(msgspec.json.encode(answer) + b"\n")
            self._answers.flush()


def main() -> None:
    """Answer the requests of standard input on standard output."""
    # Whatever a library prints must not come between the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    Job(sys.stdin.buffer, answers).run()


if __name__ == "__main__":
    main()
