"""The worker's side of the check process."""

import contextlib
import signal
import subprocess
import threading

import msgspec

from baton_serve.start import module_command
from protocol.request import Grammar
from workers.grammar.check_process import CHECK_CPU_S, CheckResult
from workers.grammar.refusal import GrammarRefused
from workers.grammar.vocabulary import SpecialTokens

START_S = 30.0
"""Time for the process to start."""
SILENCE_S = 10.0
"""Time after which a process that neither answers nor uses its processor time is killed."""


class GrammarChecks:
    """Owns the check process, which is started when it is needed first, or again. Used by one thread at a time."""

    def __init__(self, special: SpecialTokens) -> None:
        """`special` is what grammars can name of the model's vocabulary."""
        self._special = special
        self._process: subprocess.Popen[bytes] | None = None

    def check(self, grammar: Grammar) -> None:
        """Raise `GrammarRefused` if the grammar cannot be used, or takes too long or too much memory to compile."""
        process = self._running()
        line = self._ask(process, grammar, SILENCE_S)
        if not line:
            code = process.wait()
            self.close()
            raise GrammarRefused(_cause(code))
        result = msgspec.json.decode(line, type=CheckResult)
        if result.problem:
            raise GrammarRefused(result.problem, result.path)

    def kill(self) -> None:
        """End the check that runs, from any thread."""
        if (process := self._process) is not None:
            process.kill()

    def close(self) -> None:
        """End the process. It starts again at the next check."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):  # a line that was not read
                    stream.close()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self.close()
        self._process = subprocess.Popen(
            module_command("workers.grammar.check_process"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # of a panic, whose cause is a grammar
        )
        if not self._ask(self._process, self._special, START_S):
            code = self._process.wait()
            self.close()
            raise GrammarRefused(f"the process that checks grammars did not start: it ended with {code}")
        return self._process

    def _ask(self, process: subprocess.Popen[bytes], message: Grammar | SpecialTokens, seconds: float) -> bytes:
        """Return the answer; nothing if the process has ended, or is silent for so long and was killed."""
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(OSError):  # it has died, as the empty answer shows
            process.stdin.write(msgspec.json.encode(message) + b"\n")
            process.stdin.flush()
        watchdog = threading.Timer(seconds, process.kill)
        watchdog.start()
        try:
            return process.stdout.readline()
        finally:
            watchdog.cancel()


def _cause(code: int) -> str:
    """Return why a grammar ended the process with this exit status."""
    if code == -signal.SIGPROF or code == -signal.SIGKILL:
        return f"it takes more than {CHECK_CPU_S:g} s to compile: use a simpler grammar"
    if code == -signal.SIGABRT:
        return "it takes too much memory to compile: use a simpler grammar"
    return "it is nested too deeply or too large to compile: use a simpler grammar"
