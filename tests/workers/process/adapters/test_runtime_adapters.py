"""Adapters that a worker loads while it serves: what it reads, and what it keeps of an earlier gateway."""

import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
import pytest
import structlog

from actors.process.file_digest import file_digest
from actors.process.regular_file import NotRegularFile, open_regular
from protocol.adapter_files import ADAPTER_FILES, DIGEST_BYTES
from protocol.bounds import MAX_ADAPTER_BYTES
from protocol.commands import LoadAdapter, UnloadAdapter
from protocol.events import AdapterChanged
from workers.engine.adapters.adapter_slots import PutAdapter
from workers.process.adapters.change import AdapterChange, AppliedChange
from workers.process.adapters.runtime_adapters import (
    MAX_WAITING,
    AdapterFilesMissing,
    RuntimeAdapters,
    read_adapter,
)

pytestmark = pytest.mark.anyio

CONFIG, WEIGHTS = ADAPTER_FILES[:2]


class Slots:
    """Notes the weights that are read, and the numbers that they are put at."""

    def __init__(self, before: Callable[[], None] = lambda: None) -> None:
        self._before = before
        self.put: dict[int, bytes] = {}

    def read(self, directory: Path) -> PutAdapter:
        self._before()
        return partial(self._put, (directory / WEIGHTS).read_bytes())

    def _put(self, weights: bytes, number: int) -> None:
        self.put[number] = weights


def make_adapter(directory: Path, weights: bytes) -> str:
    directory.mkdir(exist_ok=True)
    (directory / CONFIG).write_text("{}")
    (directory / WEIGHTS).write_bytes(weights)
    return file_digest(directory, ADAPTER_FILES, DIGEST_BYTES, MAX_ADAPTER_BYTES, open_regular)


def command(directory: Path, digest: str, *, name: str = "one", number: int = 1, query: int = 1) -> LoadAdapter:
    return LoadAdapter(query, name, number, (str(directory / "none"), str(directory)), digest)


def test_what_is_read_is_what_has_the_digest_whatever_is_written_meanwhile(tmp_path: Path) -> None:
    digest = make_adapter(tmp_path / "a", b"first")
    slots = Slots(before=lambda: shutil.rmtree(tmp_path / "a"))
    read_adapter(slots, command(tmp_path / "a", digest))(1)
    assert slots.put == {1: b"first"}
    make_adapter(tmp_path / "a", b"other")
    with pytest.raises(AdapterFilesMissing, match="or it has changed there"):
        read_adapter(slots, command(tmp_path / "a", digest))


def test_a_fifo_in_place_of_a_file_is_refused_and_does_not_hold_the_worker_up(tmp_path: Path) -> None:
    digest = make_adapter(tmp_path / "a", b"first")
    (tmp_path / "a" / WEIGHTS).unlink()
    os.mkfifo(tmp_path / "a" / WEIGHTS)
    with pytest.raises(NotRegularFile):
        read_adapter(Slots(), command(tmp_path / "a", digest))


class Worker:
    """The adapters of a worker, whose engine applies each change at once."""

    def __init__(self, places: int = 2) -> None:
        self.slots = Slots()
        self.numbers = {"fixed": 1}
        self.answers: list[AdapterChanged] = []
        self.answered = anyio.Event()
        log = structlog.get_logger("test")
        self.adapters = RuntimeAdapters(self.slots, self.numbers, places, self._apply, self._answer, log)

    def _apply(self, change: AdapterChange) -> None:
        change.apply()
        self.adapters.applied([AppliedChange(change.query)])

    def _answer(self, answer: AdapterChanged) -> None:
        self.answers.append(answer)
        self.answered.set()

    async def change(self, changed: LoadAdapter | UnloadAdapter) -> str:
        self.answered = anyio.Event()
        self.adapters.take(changed)
        await self.answered.wait()
        return self.answers[-1].text


@asynccontextmanager
async def running(worker: Worker) -> AsyncIterator[None]:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(worker.adapters.run)
        yield
        tasks.cancel_scope.cancel()


async def test_a_gateway_that_was_restarted_gives_other_numbers(tmp_path: Path) -> None:
    """The worker goes on, with what the one before it had loaded."""
    one, two = make_adapter(tmp_path / "one", b"1"), make_adapter(tmp_path / "two", b"2")
    worker = Worker()
    async with running(worker):
        for number, (name, digest) in enumerate((("one", one), ("two", two)), 1):
            assert await worker.change(command(tmp_path / name, digest, name=name, number=number)) == ""
        assert worker.numbers == {"fixed": 1, "one": 2, "two": 3}
        assert await worker.change(command(tmp_path / "two", two, name="two")) == ""
        assert worker.numbers == {"fixed": 1, "two": 2}
        assert worker.slots.put[2] == b"2"
        assert await worker.change(command(tmp_path / "one", one, name="one", number=2)) == ""
        assert worker.numbers == {"fixed": 1, "two": 2, "one": 3}
        assert "room for 2 adapters" in await worker.change(command(tmp_path / "one", one, name="3", number=3))
        assert "loaded with the model" in await worker.change(command(tmp_path / "one", one, name="fixed"))
        assert await worker.change(UnloadAdapter(9, "two")) == await worker.change(UnloadAdapter(9, "none")) == ""
        assert worker.numbers == {"fixed": 1, "one": 3}


async def test_more_changes_than_the_bound_are_refused(tmp_path: Path) -> None:
    worker = Worker()
    for query in range(MAX_WAITING + 1):
        worker.adapters.take(UnloadAdapter(query, "none"))
    assert worker.answers == [AdapterChanged(MAX_WAITING, f"{MAX_WAITING} changes of adapters wait already")]
