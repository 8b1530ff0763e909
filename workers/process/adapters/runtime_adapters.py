"""Loads adapters while a worker serves: reads their files on a thread, and lets the engine thread put them in place."""

import asyncio
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
from structlog.typing import FilteringBoundLogger

from actors.process.file_digest import file_digest
from actors.process.regular_file import open_regular
from protocol.adapter_files import ADAPTER_FILES, DIGEST_BYTES
from protocol.bounds import MAX_ADAPTER_BYTES, MAX_ADAPTERS, clip
from protocol.commands import LoadAdapter, UnloadAdapter
from protocol.events import AdapterChanged
from workers.engine.adapters.adapter_slots import AdapterSlots, PutAdapter
from workers.process.adapters.change import AdapterChange, AppliedChange

MAX_WAITING = 2 * MAX_ADAPTERS
"""Maximum number of changes that wait; more are refused."""


class RuntimeAdapters:
    """Owns the adapters that were loaded at run time. One change is made after the other, in the order in which they
    came. Used on the event loop."""

    def __init__(
        self,
        slots: AdapterSlots | None,
        numbers: dict[str, int],
        places: int,
        post: Callable[[AdapterChange], None],
        answer: Callable[[AdapterChanged], None],
        log: FilteringBoundLogger,
    ) -> None:
        """`numbers` are those of the adapters that requests may name, to which loaded ones are added: after those that
        it has now, up to `places` more. `post` gives the engine thread a change, whose end `applied` takes."""
        self._slots = slots
        self._numbers = numbers
        self._fixed = len(numbers)
        self._places = places
        self._post = post
        self._answer = answer
        self._log = log
        self._waiting: deque[LoadAdapter | UnloadAdapter] = deque()
        self._wanted = asyncio.Event()
        self._applied: asyncio.Future[AppliedChange] | None = None
        self._there: dict[str, LoadAdapter] = {}
        """The adapters that were loaded, by name."""

    def take(self, command: LoadAdapter | UnloadAdapter) -> None:
        """Take a change, which is answered later."""
        if len(self._waiting) >= MAX_WAITING:
            self._answer(AdapterChanged(command.query, f"{MAX_WAITING} changes of adapters wait already"))
            return
        self._waiting.append(command)
        self._wanted.set()

    def applied(self, changes: Sequence[AppliedChange]) -> None:
        """Take what the engine thread has applied."""
        for change in changes:
            if self._applied is not None and not self._applied.done():
                self._applied.set_result(change)

    async def run(self) -> None:
        """Make changes until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            while self._waiting:
                command = self._waiting.popleft()
                text = await self._load(command) if isinstance(command, LoadAdapter) else self._unload(command)
                self._answer(AdapterChanged(command.query, clip(text)))

    def _unload(self, command: UnloadAdapter) -> str:
        if self._there.pop(command.name, None) is not None:
            del self._numbers[command.name]
        return ""

    async def _load(self, command: LoadAdapter) -> str:
        """Load an adapter, and return why it could not be; empty if it could."""
        if self._slots is None or command.number > self._places:
            return f"this worker has room for {self._places} adapters at run time: set --lora-dir and --max-loras"
        if (there := self._there.get(command.name)) is not None:
            if (there.number, there.digest) == (command.number, command.digest):
                return ""
            self._unload(UnloadAdapter(0, command.name))  # of a gateway that is gone, with all its sequences
        if command.name in self._numbers:
            return f"{command.name!r} was loaded with the model"
        for name in [name for name, each in self._there.items() if each.number == command.number]:
            self._unload(UnloadAdapter(0, name))  # likewise
        try:
            put = await anyio.to_thread.run_sync(partial(read_adapter, self._slots, command))
        except Exception as error:  # noqa: BLE001  the gateway tells the client, and the worker serves on
            self._log.warning("adapter_not_loaded", adapter=command.name, problem=str(error))
            return str(error) or type(error).__name__
        number = self._fixed + command.number
        self._applied = asyncio.get_running_loop().create_future()
        self._post(AdapterChange(command.query, partial(put, number)))
        done = await self._applied
        if not done.text:
            self._there[command.name], self._numbers[command.name] = command, number
        return done.text


class AdapterFilesMissing(Exception):
    """Raised where none of the directories of a `LoadAdapter` has files of its digest."""


def read_adapter(slots: AdapterSlots, command: LoadAdapter) -> PutAdapter:
    """Read the adapter of a command. The first directory is the gateway's own copy, which does not change. Others are
    copied first: what is read is what has the digest, whatever is written there meanwhile.

    Raises `AdapterFilesMissing`, and what `AdapterSlots.read` raises.
    """
    own, *others = map(Path, command.paths)
    if _digest(own) == command.digest:
        return slots.read(own)
    for path in others:
        with tempfile.TemporaryDirectory(prefix="baton-adapter-") as copy:
            if _digest(path, Path(copy)) == command.digest:
                return slots.read(Path(copy))
    raise AdapterFilesMissing(f"no file of it is in {command.paths[-1]!r} on this machine, or it has changed there")


def _digest(path: Path, copy_to: Path | None = None) -> str:
    """Return the digest of the adapter in a directory; empty if there is none."""
    if not (path / ADAPTER_FILES[0]).is_file():
        return ""
    return file_digest(path, ADAPTER_FILES, DIGEST_BYTES, MAX_ADAPTER_BYTES, open_regular, copy_to)
