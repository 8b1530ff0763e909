"""A child process that cannot be orphaned, leaked or left a zombie.

It runs in a session of its own, so that what it starts ends with it; its stdin is a pipe that stays open for as long as
this process lives, so that it sees the end of file when we are gone, however we went; its stderr is read to the end, in
bounded lines. Needs asyncio underneath, for `add_reader`.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

import anyio
import anyio.to_thread

from actors.process.exit_cause import STOPPED, Origin, of_exit, of_hang
from actors.process.proc import OomKills, killed_for_memory, state_of
from actors.process.stderr_lines import LineCutter

READ_BYTES = 65536
LAST_READS = 32
"""Reads of what a dead child left in its pipe."""
OnLine = Callable[[bytes], None]


class SpawnFailed(Exception):
    """Raised when the operating system does not start the program: it is not there, or there is no room for it."""


class ChildProcess:
    """One running child. Made by `spawn`; `end` must run before it is forgotten."""

    def __init__(self, popen: "subprocess.Popen[bytes]", on_line: OnLine, oom_kills: OomKills) -> None:
        assert popen.stderr is not None
        self._popen = popen
        self._on_line = on_line
        self._oom_kills = oom_kills  # before it was started
        self._sent: set[int] = set()
        self._origin = Origin.UNKNOWN
        self._out_of_memory: bool | None = None
        self._lines = LineCutter()
        self._loop = asyncio.get_running_loop()
        self._exited = anyio.Event()
        self._returncode: int | None = None
        self._stderr = popen.stderr.fileno()
        os.set_blocking(self._stderr, False)
        self._reading = True
        self._loop.add_reader(self._stderr, self._on_stderr)
        # Linux tells of an exit by a descriptor; elsewhere a thread waits. Neither needs a signal handler.
        self._pidfd = _open_pidfd(popen.pid)
        if self._pidfd >= 0:
            self._loop.add_reader(self._pidfd, self._on_exit)

    @classmethod
    def spawn(cls, command: Sequence[str], on_line: OnLine, env: Mapping[str, str] | None = None) -> "ChildProcess":
        """Start `command`. `on_line` gets each line of its stderr. Raises `SpawnFailed`."""
        oom_kills = OomKills.now()
        try:
            popen = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
                env=None if env is None else dict(env),
                bufsize=0,
            )
        except (OSError, ValueError) as error:
            raise SpawnFailed(f"cannot start {command[0] if command else 'an empty command'!r}: {error}") from error
        return cls(popen, on_line, oom_kills)

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def returncode(self) -> int | None:
        """The exit status once it has exited, as in `subprocess`: negative is the signal that killed it."""
        return self._returncode

    @property
    def origin(self) -> Origin:
        """Who ended it, once it has exited. What we ended ourselves is UNKNOWN here."""
        return self._origin

    @property
    def hang_origin(self) -> Origin:
        """Who is to blame when it does not get on, now."""
        return of_hang(state_of(self.pid) if self._returncode is None else None)

    @property
    def suspended(self) -> bool:
        """A signal has stopped it. False where the kernel does not tell."""
        return self._returncode is None and state_of(self.pid) == STOPPED

    def owns(self, pid: int) -> bool:
        """Whether a process is this child or one that it has started, by its session."""
        try:
            return pid == self.pid or (pid > 0 and os.getsid(pid) == self.pid)
        except ProcessLookupError:
            return False

    def describe_exit(self) -> str:
        """How it ended, in words."""
        code = self._returncode
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

    async def wait(self) -> int:
        """Wait for its exit; the status."""
        if self._pidfd < 0 and self._returncode is None:
            # WNOWAIT leaves the zombie, which holds the process group's number until the group has been killed.
            await anyio.to_thread.run_sync(_wait_exit, self.pid, abandon_on_cancel=True)
            self._on_exit()
        await self._exited.wait()
        assert self._returncode is not None
        return self._returncode

    async def end(self, *, ask_s: float = 0.0, term_s: float = 2.0) -> int:
        """End it for certain: wait `ask_s` seconds for an exit that was asked for, SIGTERM and wait `term_s`, SIGKILL.
        One that is suspended hears nothing but the last, and is not waited for.

        Its whole process group is killed and its descriptors are closed, always: also when this call is cancelled.
        Returns the exit status. May be called again.
        """
        try:
            for patience, number in ((ask_s, signal.SIGTERM), (term_s, signal.SIGKILL)):
                if patience > 0 and self._returncode is None and not self.suspended:
                    with anyio.move_on_after(patience):
                        await self.wait()
                self._send(number)
        finally:
            self._send(signal.SIGKILL)
            with anyio.CancelScope(shield=True):  # bounded: nothing survives SIGKILL but a stuck kernel call
                with anyio.move_on_after(5.0):
                    await self.wait()
            self._close()
        return -signal.SIGKILL if self._returncode is None else self._returncode

    def close_stdin(self) -> None:
        """Let the child see the end of file, as it would if this process were gone."""
        if self._popen.stdin is not None:
            self._popen.stdin.close()

    def _send(self, number: signal.Signals) -> None:
        """Signal it in order to end it; it may not be the signal that does."""
        self._sent.add(number)
        self._signal(number)

    def _signal(self, number: signal.Signals) -> None:
        """Signal the group while its leader is not reaped: only until then is the number surely ours."""
        if self._returncode is None:
            try:
                os.killpg(self.pid, number)
            except ProcessLookupError:
                pass  # the group is gone already
            except PermissionError:
                pass  # macOS says so of a group that has only a zombie left

    def _on_exit(self) -> None:
        if self._returncode is not None:
            return
        oom_kills = OomKills.now(self.pid)  # while it is a zombie: its cgroup is still known
        self._signal(signal.SIGKILL)  # what the child left behind in its group
        self._returncode = self._popen.wait()
        self._out_of_memory = killed_for_memory(self._oom_kills, oom_kills)
        self._origin = of_exit(self._returncode, self._sent, self._out_of_memory)
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
        self._exited.set()

    def _on_stderr(self) -> None:
        self._read_some()

    def _read_some(self) -> bool:
        """Take up to READ_BYTES of what it said; false when there is no more for now."""
        if not self._reading:
            return False
        try:
            data = os.read(self._stderr, READ_BYTES)
        except BlockingIOError:
            return False
        now = self._loop.time()
        if data:
            self._say(self._lines.feed(data, now))
        else:
            self._reading = False
            self._loop.remove_reader(self._stderr)
            self._say(self._lines.finish(now))
        return self._reading

    def _say(self, lines: list[bytes]) -> None:
        for line in lines:
            self._on_line(line)
        if self._lines.suppressed and (lines or not self._reading):
            self._on_line(b"%d lines left out: too many in one second" % self._lines.take_suppressed())

    def _close(self) -> None:
        for _ in range(LAST_READS):  # one that left the group may still hold the pipe and write: not for ever
            if not self._read_some():
                break
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._stderr)
            self._say(self._lines.finish(self._loop.time()))
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
        self.close_stdin()
        assert self._popen.stderr is not None
        self._popen.stderr.close()


def _open_pidfd(pid: int) -> int:
    """A descriptor that becomes readable when the process exits, or -1 where there is no such thing."""
    if sys.platform != "linux":
        return -1
    try:
        return os.pidfd_open(pid)
    except OSError:  # an old kernel, or a sandbox that does not have the call
        return -1


def _wait_exit(pid: int) -> None:
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    except ChildProcessError:
        pass  # reaped already
