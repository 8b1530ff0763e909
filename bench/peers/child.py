"""A session with an engine in a child process, which speaks the protocol of `bench/peers/children/serve.py`."""

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.measurement.rounds import RefusedError
from bench.peers.peer import Prompts, decode_rate, prefill_rate

CHILDREN = Path(__file__).parent / "children"
GRACE_S = 10.0
"""For a child to end after its stdin was closed."""
MAX_WARM_UP = 2048
"""Prompt tokens of a run that is not timed."""
EXCEPTION = re.compile(r"[\w.]*(Error|Exception|Refused)\w*: ")
"""The last line of a traceback."""


class ChildSession:
    """Sends prompts to a child and computes rates from the times of its steps."""

    def __init__(self, python: Path | str, script: Path, settings: Mapping[str, Any], environment: Mapping[str, str]):
        """Raises `RefusedError` if the child ends before it has loaded its model."""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `close`)
        # -P: the scripts have the names of the packages that they import.
        self._process = subprocess.Popen(
            [str(python), "-P", str(script)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True,
            env={**os.environ, **environment},
        )  # fmt: skip
        self._prompts = Prompts(0)
        self._met: set[tuple[int, int]] = set()
        try:
            self._ask(settings)
        except RefusedError:
            self.close()
            raise

    def decode(self, streams: int, prompt: int, tokens: int) -> float:
        first = (streams, min(prompt, MAX_WARM_UP))
        if first not in self._met:  # the first time may load graphs and allocate
            self._run(self._prompts.batch(*first), 4)
            self._met.add(first)
        return decode_rate(self._run(self._prompts.batch(streams, prompt), tokens)["steps"], streams)

    def prefill(self, length: int) -> float:
        if (1, length) not in self._met:
            self._run(self._prompts.batch(1, length), 1)
            self._met.add((1, length))
        return prefill_rate(self._run(self._prompts.batch(1, length), 1)["steps"], length)

    def generate(self, prompts: Sequence[Sequence[int]], tokens: int) -> int:
        return sum(map(len, self._run(prompts, tokens)["tokens"]))

    def complete(self, prompt: Sequence[int], tokens: int) -> list[int]:
        (found,) = self._run([prompt], tokens)["tokens"]
        return [int(token) for token in found]

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            pass  # it has ended
        try:
            self._process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._errors.close()

    def _run(self, prompts: Sequence[Sequence[int]], tokens: int) -> dict[str, Any]:
        return self._ask({"prompts": prompts, "tokens": tokens})

    def _ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Raises `RefusedError` if the child ends instead of answering."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise RefusedError(f"its process ended with status {self._process.wait()}: {self._last_words()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _last_words(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        # Libraries may write more after the exception.
        errors = [line for line in lines if EXCEPTION.match(line)]
        return (errors or lines or ["no message"])[-1][-200:]
