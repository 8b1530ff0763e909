"""The wait for something that a child process is to bring about."""

import asyncio
import subprocess

GRACE_S = 10.0
"""After a child's end, for what it sent last to arrive."""


async def wait_for(event: asyncio.Event, process: "subprocess.Popen[bytes]") -> None:
    """Wait until `event` is set. Raises RuntimeError if the child ends before."""
    done = asyncio.ensure_future(event.wait())
    ended = asyncio.ensure_future(asyncio.to_thread(process.wait))
    await asyncio.wait({done, ended}, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.wait({done}, timeout=GRACE_S)
    if not event.is_set():
        done.cancel()
        raise RuntimeError(f"the child ended with status {process.returncode} before the measurement did")
