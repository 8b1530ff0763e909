"""Child processes: every way to end, and that nothing of them is left."""

import os
import signal
import sys
from collections.abc import Callable

import anyio
import anyio.lowlevel
import pytest

from actors.process.child import ChildProcess, SpawnFailed
from actors.process.exit_cause import STOPPED, Origin, of_hang
from actors.process.proc import OomKills
from actors.process.stderr_lines import LINES_PER_SECOND, MAX_LINE_BYTES
from tests.actors.supervision.processes import WAIT_S, wait_gone

pytestmark = pytest.mark.anyio

IGNORES_TERM = "trap '' TERM; echo up >&2; while :; do sleep 100; done"


@pytest.fixture(params=["descriptor", "thread"], autouse=True)
def _exit_watch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything holds as well where the system has no descriptor of a process."""
    if request.param == "thread":
        monkeypatch.setattr("actors.process.child._open_pidfd", lambda pid: -1)


class Lines:
    """The lines of a child."""

    def __init__(self) -> None:
        self.said: list[bytes] = []
        self._changed = anyio.Event()

    def __call__(self, line: bytes) -> None:
        self.said.append(line)
        self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        with anyio.fail_after(WAIT_S):
            while not condition():
                self._changed = anyio.Event()
                await self._changed.wait()


class Child(ChildProcess):
    """One whose exit can be waited for."""

    exited: anyio.Event

    async def wait(self) -> int:
        """Its exit status."""
        with anyio.fail_after(WAIT_S):
            await self.exited.wait()
        assert self.returncode is not None
        return self.returncode

    async def ended(self, *, ask_s: float = 0.0, term_s: float = WAIT_S) -> int:
        self.end(ask_s, term_s)
        return await self.wait()


def spawn(command: list[str], lines: Callable[[bytes], None], env: dict[str, str] | None = None) -> Child:
    exited = anyio.Event()
    child = Child.spawn(command, lines, exited.set, env)
    assert isinstance(child, Child)
    child.exited = exited
    return child


def shell(script: str, lines: Callable[[bytes], None] = lambda line: None) -> Child:
    return spawn(["/bin/sh", "-c", script], lines)


def assert_reaped(pid: int) -> None:
    with pytest.raises(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


@pytest.mark.parametrize(
    ("script", "status", "words"),
    [
        ("exit 0", 0, "exited with status 0"),
        ("exit 7", 7, "exited with status 7"),
        ("kill -9 $$", -9, "was killed by SIGKILL"),
        ("kill -34 $$", -34, "was killed by signal 34"),
    ],
)
async def test_an_exit_is_seen_and_reported(script: str, status: int, words: str) -> None:
    if status == -34 and sys.platform != "linux":
        pytest.skip("a real-time signal")
    child = shell(script)
    assert await child.wait() == status
    assert child.describe_exit() in (words, "was killed by SIGRTMIN")
    child.end(0.0, 0.0)
    assert child.returncode == status
    assert_reaped(child.pid)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nobody counts the kills")
@pytest.mark.parametrize(
    ("script", "out_of_memory", "origin"),
    [
        ("exit 7", False, Origin.WITHIN),
        ("kill -ABRT $$", False, Origin.WITHIN),
        ("kill -TERM $$", True, Origin.OUTSIDE),
        ("kill -KILL $$", False, Origin.OUTSIDE),
        ("kill -KILL $$", True, Origin.MEMORY),
        ("kill -KILL $$", None, Origin.UNKNOWN),
    ],
)
async def test_an_exit_says_who_ended_it(
    script: str, out_of_memory: bool | None, origin: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments: list[OomKills] = []

    def judge(before: OomKills, after: OomKills) -> bool | None:
        moments.extend((before, after))
        return out_of_memory

    monkeypatch.setattr("actors.process.child.killed_for_memory", judge)
    child = shell(script)
    await child.wait()
    assert child.origin is origin
    assert ("for memory" in child.describe_exit()) == ("KILL" in script and out_of_memory is True)
    assert len(moments) == 2
    child.end(0.0, 0.0)
    assert child.origin is origin, "what is done to one that is dead changes nothing"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nobody counts the kills")
async def test_a_kill_from_outside_is_known_by_the_kernels_own_counts() -> None:
    child = shell("kill -KILL $$")
    await child.wait()
    assert child.origin is Origin.OUTSIDE


async def test_what_we_end_was_ended_by_nobody_else() -> None:
    lines = Lines()
    child = shell("echo up >&2; while :; do sleep 0.01; done", lines)
    await lines.until(lambda: bool(lines.said))
    assert await child.ended(term_s=WAIT_S) == -signal.SIGTERM
    assert child.origin is Origin.UNKNOWN


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nobody tells the state")
async def test_one_that_was_suspended_is_not_to_blame_for_its_hang() -> None:
    lines = Lines()
    child = shell("echo up >&2; kill -STOP $$", lines)

    def blamed() -> Origin:
        return of_hang(child.state)

    await lines.until(lambda: bool(lines.said))
    with anyio.fail_after(WAIT_S):
        while blamed() is not Origin.OUTSIDE:
            await anyio.lowlevel.checkpoint()
    os.kill(child.pid, signal.SIGCONT)
    await child.wait()
    assert blamed() is Origin.UNKNOWN, "it is gone"


async def test_its_stdin_is_open_until_it_is_closed() -> None:
    lines = Lines()
    child = shell("echo up >&2; cat; echo end >&2", lines)
    await lines.until(lambda: lines.said == [b"up"])
    assert child.returncode is None
    assert child.describe_exit() == "is running"
    child.close_stdin()
    await child.wait()
    assert lines.said == [b"up", b"end"]


async def test_an_end_that_was_asked_for_needs_no_signal() -> None:
    child = shell("cat; exit 5")
    child.close_stdin()
    assert await child.ended(ask_s=WAIT_S) == 5


async def test_sigterm_comes_before_sigkill() -> None:
    lines = Lines()
    child = shell("trap 'echo bye >&2; exit 6' TERM; echo up >&2; while :; do sleep 0.01; done", lines)
    await lines.until(lambda: lines.said == [b"up"])
    assert await child.ended(term_s=WAIT_S) == 6
    assert lines.said[-1] == b"bye"  # a shell may tell of its killed sleep before


async def test_one_that_ignores_sigterm_is_killed() -> None:
    lines = Lines()
    child = shell(IGNORES_TERM, lines)
    await lines.until(lambda: bool(lines.said))
    assert await child.ended(term_s=0.05) == -signal.SIGKILL
    assert_reaped(child.pid)


async def test_it_has_the_time_that_it_was_given_last() -> None:
    lines = Lines()
    child = shell(IGNORES_TERM, lines)
    await lines.until(lambda: bool(lines.said))
    child.end(3600.0, 3600.0)
    assert await child.ended(term_s=0.05) == -signal.SIGKILL
    assert_reaped(child.pid)


async def test_one_that_nothing_ends_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that is stuck in a call of the kernel: it is reaped when it comes back."""
    monkeypatch.setattr("actors.process.child.KILL_S", 0.05)
    child = shell("while :; do sleep 0.01; done")
    monkeypatch.setattr(child, "_signal", lambda number: None)
    child.end(0.0, 0.05)
    with anyio.fail_after(WAIT_S):
        await child.exited.wait()
    assert child.returncode is None
    monkeypatch.undo()
    child.end(0.0, 0.05)
    with anyio.fail_after(WAIT_S):
        while not child.describe_exit().startswith("was killed"):  # noqa: ASYNC110  the event is set already
            await anyio.sleep(0.002)
    assert_reaped(child.pid)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nobody reports the state")
@pytest.mark.parametrize("ask_s", [0.0, 3600.0])
async def test_one_that_is_suspended_is_killed_at_once(ask_s: float) -> None:
    lines = Lines()
    child = shell("echo up >&2; kill -STOP $$", lines)
    await lines.until(lambda: bool(lines.said))
    with anyio.fail_after(WAIT_S):
        while child.state != STOPPED:
            await anyio.lowlevel.checkpoint()
    assert await child.ended(ask_s=ask_s, term_s=3600.0) == -signal.SIGKILL


@pytest.mark.parametrize("leader", ["exit 0", "wait"], ids=["leader gone", "leader waits"])
async def test_what_the_child_started_ends_with_it(leader: str) -> None:
    lines = Lines()
    child = shell(f"sleep 1000 & echo $! >&2; {leader}", lines)
    await lines.until(lambda: bool(lines.said))
    await child.ended(term_s=1)
    wait_gone(int(lines.said[0]))


@pytest.mark.skipif(sys.platform != "linux", reason="needs setsid")
async def test_one_that_left_the_group_and_holds_the_pipe_does_not_hold_us_up() -> None:
    lines = Lines()
    child = shell("setsid sh -c 'echo $$ >&2; exec sleep 1000' & cat; exit 0", lines)
    await lines.until(lambda: bool(lines.said))
    child.close_stdin()
    await child.wait()
    os.kill(int(lines.said[0]), signal.SIGKILL)


@pytest.mark.parametrize("command", [["/no/such/program"], ["/etc/passwd"], ["a\0b"]], ids=["missing", "denied", "nul"])
async def test_a_program_that_cannot_be_started(command: list[str]) -> None:
    with pytest.raises(SpawnFailed, match="cannot start"):
        spawn(command, lambda line: None)


async def test_the_environment_is_what_was_given() -> None:
    lines = Lines()
    child = spawn(["/bin/sh", "-c", "echo $ANSWER >&2"], lines, env={"ANSWER": "42"})
    await child.wait()
    assert lines.said == [b"42"]


async def test_stderr_is_bounded_in_length_and_number() -> None:
    lines = Lines()
    child = shell("head -c 1000000 /dev/zero | tr '\\0' x >&2; echo >&2; seq 5000 >&2; printf tail >&2", lines)
    await child.wait()
    assert max(map(len, lines.said)) == MAX_LINE_BYTES
    assert len(lines.said) < 5000
    assert any(b"lines left out" in line for line in lines.said)
    assert len(lines.said) >= LINES_PER_SECOND


async def test_nothing_is_left_open() -> None:
    await shell("exit 0").ended()
    before = len(os.listdir("/dev/fd"))
    for script in ("exit 0", "kill -9 $$", "cat"):
        await shell(script).ended(term_s=1.0)
    assert len(os.listdir("/dev/fd")) == before


async def test_a_child_owns_itself_and_what_it_started_and_nobody_else() -> None:
    lines: list[bytes] = []
    program = (
        "import subprocess, sys; print(subprocess.Popen(['sleep', '60']).pid, file=sys.stderr, flush=True); input()"
    )
    child = spawn([sys.executable, "-c", program], lines.append)
    try:
        while not lines:
            await anyio.lowlevel.checkpoint()
        assert child.owns(child.pid)
        assert not child.owns(os.getpid())
        assert not child.owns(0), "which would be this process's own session"
        assert child.owns(int(lines[0])), "what it started is in its session"
    finally:
        await child.ended()
    assert not child.owns(child.pid + (1 << 30)), "there is no such process"
