"""The worker's side of the check process."""

import contextlib
import math
import os
import select
import signal
import subprocess
import time

import msgspec

from baton_serve.start import module_command
from protocol.request import Grammar
from workers.grammar.check_process import (
    CHECK_CPU_S,
    UNKNOWN,
    CheckEnded,
    CheckReply,
    CheckRequest,
    CheckResult,
    CheckStarted,
)
from workers.grammar.compile_credit import MAX_CREDIT_S, CompileCredit
from workers.grammar.priority import demote, processor_time
from workers.grammar.refusal import GrammarRefused
from workers.grammar.vocabulary import SpecialTokens

START_S = 30.0
"""Time for the process, or the next child, to start."""
SILENCE_S = 10.0
"""Time after which a child that neither answers nor uses its processor time is killed."""
LEAST_CPU_S = CHECK_CPU_S / 50
"""Processor time that a child must use in such a time."""
FORK_S = 0.005
"""Processor time that a new child takes."""
MAX_SLOWDOWN = 10
"""Wall time for a unit of processor time, up to which a grammar keeps its priority."""
RUNAWAY_SIGNALS = frozenset({signal.SIGPROF, signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS})
"""The signals that end a child whose grammar takes too much time, memory or stack. Other ends have other causes, such
as a kill from outside: the same grammar may be sent again."""
_READ_BYTES = 1 << 16


class GrammarChecks:
    """Owns the check process, which is started when it is needed first, or again. Used by one thread at a time.

    A grammar that takes longer than the credit is compiled at a low priority from then on.
    """

    def __init__(self, special: SpecialTokens, credit: CompileCredit) -> None:
        """`special` is what grammars can name of the model's vocabulary."""
        self._special = special
        self._credit = credit
        self._replies: msgspec.json.Decoder[CheckReply] = msgspec.json.Decoder(CheckReply)
        self._process: subprocess.Popen[bytes] | None = None
        self._unread = b""
        self._child = 0
        """The process that compiles, 0 while there is none."""
        self._demoted = False
        self._number = 0
        """That of the last grammar."""
        self._killed = False
        """The end of the child ends the check, whatever it was compiling."""

    def check(self, grammar: Grammar) -> CheckResult:
        """Return the grammar in llguidance's form, and the processor time that it took.

        Raises `GrammarRefused` if the grammar cannot be used, or takes too long or too much memory to compile.
        """
        self._start()
        if self._demoted and self._credit.seconds >= MAX_CREDIT_S / 2:
            self._replace_child()
        usual_s = 0.0 if self._demoted else self._credit.usual_s
        self._number += 1
        self._killed = False
        self._send(msgspec.json.encode(CheckRequest(self._number, grammar)))
        reply = self._usual_result(usual_s) if usual_s else None
        if reply is None:
            self._demote()
            reply = self._late_result() or self._end_silent()
        if isinstance(reply, CheckEnded):
            self._credit.spend(usual_s + FORK_S)
            raise GrammarRefused(_cause(reply.status), runaway=-reply.status in RUNAWAY_SIGNALS)
        self._credit.spend(min(usual_s, reply.cpu_s))
        if reply.problem:
            raise GrammarRefused(reply.problem, reply.path)
        return reply

    def kill(self) -> None:
        """End the check that runs, from any thread."""
        if child := self._child:
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.kill(child, signal.SIGKILL)
            self._killed = True  # after it: a check that has just begun would take it back

    def close(self) -> None:
        """End the process. It starts again at the next check."""
        process, self._process = self._process, None
        self._child, self._demoted, self._unread = 0, False, b""
        if process is None:
            return
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):  # a line that was not read
                    stream.close()
        try:
            process.wait(SILENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _start(self) -> None:
        """Start the process if it does not run, and wait until it has a child."""
        while self._process is not None and self._receive(0.0) is not None:
            pass  # what came since the last check: the child may have ended
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._process = subprocess.Popen(
                module_command("workers.grammar.check_process"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # of a panic, whose cause is a grammar
                bufsize=0,
            )
            self._send(msgspec.json.encode(self._special))
        self._await_child()

    def _replace_child(self) -> None:
        """Get a child of the usual priority."""
        self._credit.spend(FORK_S)
        self.kill()
        self._child = 0
        self._await_child()

    def _await_child(self) -> None:
        for _ in range(2):  # the end of the one before comes first
            reply = self._receive(START_S) if not self._child else None
            if self._child:
                return
            if not isinstance(reply, CheckEnded) or self._process is None:
                break
        code = reply.status if isinstance(reply, CheckEnded) else self._kill_process()
        raise GrammarRefused(f"the process that checks grammars did not start: it ended with {code}")

    def _demote(self) -> None:
        """Lower the priority of the child. Where the one before has just ended, this is the next one."""
        self._await_child()
        with contextlib.suppress(OSError):  # it has ended
            demote(self._child)
        self._demoted = True

    def _end_silent(self) -> CheckResult | CheckEnded:
        """Kill the child, or the whole process if that has no effect."""
        self.kill()
        return self._result(SILENCE_S) or CheckEnded(self._kill_process())

    def _kill_process(self) -> int:
        assert self._process is not None
        self._process.kill()
        code = self._process.wait()
        self.close()
        return code

    def _send(self, line: bytes) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        unsent = memoryview(line + b"\n")
        with contextlib.suppress(OSError):  # it has died, as the end of its output shows
            while unsent:
                unsent = unsent[self._process.stdin.write(unsent) :]

    def _usual_result(self, usual_s: float) -> CheckResult | CheckEnded | None:
        """Return the result of the grammar that was sent; None once the child has used so much processor time. On a
        busy machine it may have had no core yet."""
        began = processor_time(self._child)
        for _ in range(MAX_SLOWDOWN):
            if (reply := self._result(usual_s)) is not None:
                return reply
            if not processor_time(self._child) - began < usual_s:
                break
        return None

    def _late_result(self) -> CheckResult | CheckEnded | None:
        """Return the result of the grammar that was sent; None once the child is silent. At a low priority it may need
        long for its processor time."""
        used, before = processor_time(self._child), -math.inf
        reply = None
        while reply is None and used - before >= LEAST_CPU_S:
            reply = self._result(SILENCE_S)
            used, before = processor_time(self._child), used
        return reply

    def _result(self, seconds: float) -> CheckResult | CheckEnded | None:
        """Return the result of the grammar that was sent; None if there is none within so many seconds."""
        deadline = time.monotonic() + seconds
        while True:
            reply = self._receive(max(0.0, deadline - time.monotonic()))
            if reply is None or (isinstance(reply, CheckEnded) and self._process is None):
                return reply
            # A child that ended while it was idle had not read the grammar.
            if isinstance(reply, CheckEnded) and self._killed:
                return reply
            if not isinstance(reply, CheckStarted) and reply.number in (self._number, UNKNOWN):
                return reply

    def _receive(self, seconds: float) -> CheckReply | None:
        """Return the next reply; None if there is none within so many seconds."""
        assert self._process is not None
        assert self._process.stdout is not None
        deadline = time.monotonic() + seconds
        poll = select.poll()
        poll.register(self._process.stdout, select.POLLIN)
        while b"\n" not in self._unread:
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                return None
            if not (data := os.read(self._process.stdout.fileno(), _READ_BYTES)):
                code = self._process.wait()
                self.close()
                return CheckEnded(code)
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        reply = self._replies.decode(line)
        if isinstance(reply, CheckStarted):
            self._child, self._demoted = reply.pid, False
        elif isinstance(reply, CheckEnded):
            self._child = 0
        return reply


def _cause(code: int) -> str:
    """Return why a grammar ended the process with this exit status."""
    if code == -signal.SIGPROF or code == -signal.SIGKILL:
        return f"it takes more than {CHECK_CPU_S:g} s to compile: use a simpler grammar"
    if code == -signal.SIGABRT:
        return "it takes too much memory to compile: use a simpler grammar"
    return "it is nested too deeply or too large to compile: use a simpler grammar"
