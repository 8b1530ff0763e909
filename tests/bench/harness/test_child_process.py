import asyncio
import subprocess
import sys

import pytest

from bench.harness import child_process
from bench.harness.child_process import wait_for


def start(program: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE)


def test_the_wait_ends_with_the_event() -> None:
    async def wait() -> None:
        event = asyncio.Event()
        with start("input()") as process:
            asyncio.get_running_loop().call_soon(event.set)
            await wait_for(event, process)
            assert process.stdin is not None
            process.stdin.close()

    asyncio.run(wait())


def test_a_child_that_ends_before_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_process, "GRACE_S", 0.0)

    async def wait() -> None:
        with start("raise SystemExit(3)") as process:
            await wait_for(asyncio.Event(), process)

    with pytest.raises(RuntimeError, match="the child ended with status 3 before the measurement did"):
        asyncio.run(wait())
