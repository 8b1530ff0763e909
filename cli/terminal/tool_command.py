"""A program that answers tool calls: it gets the call as JSON on standard input, and prints the result."""

import contextlib
import json
import os
import select
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable

from cli.config.errors import InvalidOption
from cli.terminal.interruption import interruptible
from cli.terminal.tool_results import ToolCancelled, ToolFailed
from protocol.request import ToolCall

MAX_RESULT_BYTES = 256 * 1024
"""Output of one call. A program that prints more is ended."""
POLL_S = 0.1
"""Time between two looks at Ctrl-C."""


class ToolCommand:
    """Implements `ToolResults`: runs one program for each call, without a shell, within a time limit."""

    typed = False

    def __init__(self, command: str, timeout_s: float) -> None:
        """Raises `InvalidOption` if there is no such program."""
        try:
            self._words = shlex.split(command)
        except ValueError as error:
            raise InvalidOption(f"--tool-command: {command!r} has a quote that is not closed") from error
        if not self._words or shutil.which(self._words[0]) is None:
            raise InvalidOption(f"--tool-command: there is no program {(self._words or [command])[0]!r}")
        self._timeout_s = timeout_s

    def result(self, call: ToolCall) -> str:
        """Return what the program printed. Raises `ToolFailed` and `ToolCancelled`."""
        given = {"id": call.id, "name": call.name, "arguments": _arguments(call)}
        with interruptible() as interrupted:  # before the program runs, which Ctrl-C must end
            process = self._start(json.dumps(given).encode())
            try:
                until = time.monotonic() + self._timeout_s
                output = self._read(process, until, interrupted)
                status = process.wait(max(POLL_S, until - time.monotonic()))
            except subprocess.TimeoutExpired as error:
                raise ToolFailed("the tool closed its output and did not end") from error
            finally:
                _end(process)
        if status:
            raise ToolFailed(f"the tool failed with exit status {status}: {output.strip()[-1000:]}".removesuffix(": "))
        return output

    def _start(self, given: bytes) -> subprocess.Popen[bytes]:
        """Start the program with what it is given. Raises `ToolFailed`."""
        with tempfile.TemporaryFile() as file:
            file.write(given)
            file.seek(0)
            try:
                # A group of its own ends whole, and does not get the terminal's Ctrl-C, which ends it in order.
                return subprocess.Popen(self._words, stdin=file, stdout=subprocess.PIPE, start_new_session=True)
            except OSError as error:
                raise ToolFailed(f"the tool could not be started: {error.strerror}") from error

    def _read(self, process: subprocess.Popen[bytes], until: float, interrupted: Callable[[], bool]) -> str:
        """Read the output up to its end."""
        assert process.stdout is not None
        output = bytearray()
        while True:
            if interrupted():
                raise ToolCancelled
            left = until - time.monotonic()
            if left <= 0:
                raise ToolFailed(f"the tool gave no result within {self._timeout_s:g} seconds")
            if not select.select([process.stdout], [], [], min(POLL_S, left))[0]:
                continue
            data = os.read(process.stdout.fileno(), 65536)
            if not data:
                return output.decode("utf-8", "replace")
            output += data
            if len(output) > MAX_RESULT_BYTES:
                raise ToolFailed(f"the tool printed over {MAX_RESULT_BYTES} bytes")


def _arguments(call: ToolCall) -> dict[str, object]:
    try:
        arguments = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError) as error:
        raise ToolFailed("the arguments of the call are not JSON; the tool was not run") from error
    if not isinstance(arguments, dict):
        raise ToolFailed("the arguments of the call are not a JSON object; the tool was not run")
    return arguments


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the program with everything that it started."""
    assert process.stdout is not None
    process.stdout.close()
    with contextlib.suppress(ProcessLookupError, PermissionError):  # all of it has ended
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
