"""A child process that cannot be orphaned, leaked or left a zombie.

It runs in a session of its own, so that what it starts ends with it; its stdin is a pipe that stays open for as long as
this process lives, so that it sees the end of file when this process is gone, for whatever reason; its stderr is read
to the end, in bounded lines. Needs asyncio underneath, for `add_reader`.
"""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence

from actors.process.exit_cause import STOPPED, Origin, of_exit
from actors.process.proc import OomKills, killed_for_memory, state_of
from actors.process.stderr_lines import LineCutter

READ_BYTES = 65536
KILL_S = 5.0
"""Time to wait for an exit after SIGKILL, which only a stuck kernel call survives."""
LAST_READS = 32
"""Reads of what an exited child left in its pipe: a process that left its group may hold the pipe open, and write."""
OnLine = Callable[[bytes], None]
OnExit = Callable[[], None]


class SpawnFailed(Exception):
    """Raised when the operating system does not start the program: it is not there, or there is no room for it."""


class ChildProcess:
    """A child from `spawn` to its exit; then it is reaped and its descriptors are closed."""

    def __init__(self, popen: "subprocess.Popen[bytes]", on_line: OnLine, on_exit: OnExit, oom_kills: OomKills) -> None:
        assert popen.stderr is not None
        self.pid = popen.pid
        self.returncode: int | None = None
        """The exit status once it has exited, as in `subprocess`: negative is the signal that killed it."""
        self.origin = Origin.UNKNOWN
        """The origin of its exit. UNKNOWN before it, and if `end` caused it."""
        self._popen = popen
        self._on_line = on_line
        self._on_exit = on_exit
        self._oom_kills = oom_kills  # before it was started
        self._sent: set[int] = set()
        self._out_of_memory: bool | None = None
        self._lines = LineCutter()
        self._loop = asyncio.get_running_loop()
        self._stderr = popen.stderr.fileno()
        os.set_blocking(self._stderr, False)
        self._reading = True
        self._steps: list[tuple[signal.Signals, float]] = []
        self._escalates: asyncio.TimerHandle | None = None
        self._loop.add_reader(self._stderr, self._read_some)
        # Linux reports an exit by a descriptor; elsewhere a thread waits. Neither needs a signal handler.
        self._pidfd = _open_pidfd(popen.pid)
        if self._pidfd >= 0:
            self._loop.add_reader(self._pidfd, self._exited)
        else:
            threading.Thread(target=self._wait_exit, name=f"exit of {popen.pid}", daemon=True).start()

    @classmethod
    def spawn(
        cls,
        command: Sequence[str],
        on_line: OnLine,
        on_exit: OnExit,
        env: Mapping[str, str] | None = None,
        descriptors: Sequence[int] = (),
    ) -> "ChildProcess":
        """Start `command`. `on_line` gets each line of its stderr; `on_exit` is called on the event loop after the last
        one: when it has exited, or could not be made to. It inherits `descriptors`, under the same numbers. Raises
        `SpawnFailed`."""
        oom_kills = OomKills.now()
        try:
            popen = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
                pass_fds=descriptors,
                env=None if env is None else dict(env),
                bufsize=0,
            )
        except (OSError, ValueError) as error:
            raise SpawnFailed(f"cannot start {command[0] if command else 'an empty command'!r}: {error}") from error
        return cls(popen, on_line, on_exit, oom_kills)

    @property
    def state(self) -> str | None:
        """See `state_of`; None when it has exited."""
        return state_of(self.pid) if self.returncode is None else None

    def owns(self, pid: int) -> bool:
        """Return whether a process is this child or one that it has started, by its session."""
        try:
            return pid == self.pid or (pid > 0 and os.getsid(pid) == self.pid)
        except ProcessLookupError:
            return False

    def describe_exit(self) -> str:
        """Describe its exit in words."""
        code = self.returncode
        if code is None:
            return "is running"
        if code >= 0:
            return f"exited with status {code}"
        try:
            name = signal.Signals(-code).name
        except ValueError:
            return f"was killed by signal {-code}"
        memory = name == "SIGKILL" and self._out_of_memory
        return f"was killed by {name}" + (", and the kernel has killed for memory" if memory else "")

    def end(self, ask_s: float, term_s: float) -> None:
        """End it: wait `ask_s` seconds for an exit that was asked for, then SIGTERM and `term_s`, then SIGKILL and
        `KILL_S`. A suspended process gets SIGKILL at once. `on_exit` is called in any case. May be called again with
        less time; no effect after the exit."""
        if self._escalates is not None:
            self._escalates.cancel()
        self._steps = [(signal.SIGTERM, term_s), (signal.SIGKILL, KILL_S)]
        if self.returncode is None:
            self._escalates = self._loop.call_later(0.0 if self.state == STOPPED else ask_s, self._escalate)

    def kill(self) -> bool:
        """Send SIGKILL to its group. Its `origin` is then that of a signal from outside. False after its exit."""
        if self.returncode is not None:
            return False
        self._signal(signal.SIGKILL)
        return True

    def _escalate(self) -> None:
        if not self._steps:
            self._on_exit()
            return
        number, wait_s = self._steps.pop(0)
        self._sent.add(number)
        self._signal(number)
        self._escalates = self._loop.call_later(
            0.0 if self._steps and self.state == STOPPED else wait_s, self._escalate
        )

    def close_stdin(self) -> None:
        """Let the child see the end of file, as it would if this process were gone."""
        if self._popen.stdin is not None:
            self._popen.stdin.close()

    def _signal(self, number: signal.Signals) -> None:
        """Signal the group while its leader is not reaped: only until then does the number surely belong to it."""
        if self.returncode is None:
            try:
                os.killpg(self.pid, number)
            except (ProcessLookupError, PermissionError):
                pass  # the group is gone already, or has only a zombie left, of which macOS reports the latter

    def _wait_exit(self) -> None:
        """Wait on a thread. The zombie is left: it keeps the group's number until the group has been killed."""
        try:
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:
            pass  # reaped already
        try:
            self._loop.call_soon_threadsafe(self._exited)
        except RuntimeError:
            pass  # the event loop has been closed: nobody waits for it any more

    def _exited(self) -> None:
        oom_kills = OomKills.now(self.pid)  # while it is a zombie: its cgroup is still known
        self._signal(signal.SIGKILL)  # what the child left behind in its group
        self.returncode = self._popen.wait()
        if self._escalates is not None:
            self._escalates.cancel()
        self._out_of_memory = killed_for_memory(self._oom_kills, oom_kills)
        self.origin = of_exit(self.returncode, self._sent, self._out_of_memory)
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
        for _ in range(LAST_READS):
            if not self._read_some():
                break
        self._end_reading()
        self.close_stdin()
        assert self._popen.stderr is not None
        self._popen.stderr.close()
        self._on_exit()

    def _read_some(self) -> bool:
        """Take up to READ_BYTES of its stderr; false when there is no more for now."""
        if not self._reading:
            return False
        try:
            data = os.read(self._stderr, READ_BYTES)
        except BlockingIOError:
            return False
        if data:
            self._forward(self._lines.feed(data, self._loop.time()))
        else:
            self._end_reading()
        return self._reading

    def _end_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._stderr)
            self._forward(self._lines.finish(self._loop.time()))

    def _forward(self, lines: list[bytes]) -> None:
        for line in lines:
            self._on_line(line)
        if self._lines.suppressed and (lines or not self._reading):
            self._on_line(b"%d lines left out: too many in one second" % self._lines.take_suppressed())


def _open_pidfd(pid: int) -> int:
    """A descriptor that becomes readable when the process exits, or -1 where there is no such thing."""
    if sys.platform != "linux":
        return -1
    try:
        return os.pidfd_open(pid)
    except OSError:  # an old kernel, or a sandbox that does not have the call
        return -1
