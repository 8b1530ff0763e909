"""The compile process: traces graphs and compiles them.

It reads lines of JSON: first a `CompileStart`, then a `CompileRequest` for each module. It writes one `CompileResult`
for each request, in the order in which they are done. The process ends with its standard input.
"""

import gc
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import BinaryIO

if __name__ == "__main__":
    gc.set_threshold(200_000)  # as workers/__main__.py does: what is imported and traced stays

import msgspec
from msgspec import Struct

from workers.errors import LoadRefused
from workers.iree.build.compiler import CompileError
from workers.iree.build.encoder.recipe import EncoderRecipe
from workers.iree.build.recipe import Recipe


class CompileStart(Struct, frozen=True):
    """The first line: what to compile, how many modules at once, and whether it is in the background
    (`Compiler.compile`)."""

    recipe: Recipe | EncoderRecipe
    parallel: int
    background: bool


class CompileRequest(Struct, frozen=True):
    """A request for one module with these graphs."""

    names: tuple[str, ...]
    key: str
    """The key by which the client finds the module. If the server's key differs, its program or the model has
    changed."""


class CompileResult(Struct, frozen=True):
    """The result of one request: where the module is, or why there is none."""

    names: tuple[str, ...]
    file: str = ""
    seconds: float = 0.0
    """Duration of tracing and compiling."""
    problem: str = ""
    refused: bool = False
    """The problem is one that an operator must solve (`LoadRefused`)."""


class CompileServer:
    """The loop of one compile process, from its first line to its last."""

    def __init__(self, lines: BinaryIO, results: BinaryIO) -> None:
        self._lines = lines
        self._results = results
        self._lock = Lock()
        self._background = False

    def run(self) -> None:
        start = msgspec.json.decode(self._lines.readline(), type=CompileStart)
        self._background = start.background
        try:
            self._plan, self._compiler = start.recipe.plan(), start.recipe.compiler()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the result of every request
            for line in self._lines:
                self._fail(msgspec.json.decode(line, type=CompileRequest), error)
            return
        with ThreadPoolExecutor(start.parallel) as pool:
            for line in self._lines:
                request = msgspec.json.decode(line, type=CompileRequest)
                # Traced here, one after the other: tracing is Python, compiling is another process.
                began = time.perf_counter()
                if (text := self._trace(request)) is not None:
                    pool.submit(self._compile, request, text, time.perf_counter() - began)

    def _trace(self, request: CompileRequest) -> str | None:
        try:
            if self._compiler.key(self._plan.describe(request.names)) != request.key:
                raise CompileError("the model's config.json or this program changed since the worker started")
            return self._plan.module(request.names)
        except Exception as error:  # noqa: BLE001 - whatever a tracer raises is the result
            self._fail(request, error)
            return None

    def _compile(self, request: CompileRequest, text: str, traced_s: float) -> None:
        began = time.perf_counter()
        try:
            file = self._compiler.compile(text, request.key, background=self._background)
        except Exception as error:  # noqa: BLE001 - as above
            self._fail(request, error)
        else:
            self._send(CompileResult(request.names, str(file), traced_s + time.perf_counter() - began))

    def _fail(self, request: CompileRequest, error: Exception) -> None:
        text = str(error) or type(error).__name__
        self._send(CompileResult(request.names, problem=text[:4000], refused=isinstance(error, LoadRefused)))

    def _send(self, result: CompileResult) -> None:
        with self._lock:
            self._results.write(msgspec.json.encode(result) + b"\n")
            self._results.flush()


def main() -> None:
    """Read requests from standard input and write their results to standard output."""
    # Output of libraries must not come between the results.
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    CompileServer(sys.stdin.buffer, results).run()


if __name__ == "__main__":
    main()
