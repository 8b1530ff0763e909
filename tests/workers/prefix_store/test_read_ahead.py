"""Blocks that are read before they are taken: in order, a few at a time, and never for those that have left."""

import threading
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from tests.workers.prefix_store.test_directory import chain
from workers.prefix_store.block import RowBlock
from workers.prefix_store.read_ahead import AHEAD_BLOCKS, AHEAD_BYTES, Read, ReadAhead

BLOCKS = chain(AHEAD_BLOCKS + 4)
WAIT_S = 30


class Disk:
    """Reads a block when the test lets it."""

    def __init__(self) -> None:
        self.read: list[bytes] = []
        self.may_read = threading.Semaphore(0)
        self.asked = threading.Semaphore(0)

    def __call__(self, block: RowBlock) -> memoryview | None:
        self.asked.release()
        assert self.may_read.acquire(timeout=WAIT_S)
        self.read.append(block.key)
        return memoryview(block.key)


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def ahead(disk: Disk) -> Iterator[ReadAhead]:
    one = ReadAhead()
    yield one
    disk.may_read.release(1000)
    one.close(WAIT_S)
    assert one._thread is None or not one._thread.is_alive()


def refused(block: RowBlock) -> memoryview | None:
    raise AssertionError("it was read ahead")


def taken(ahead: ReadAhead, block: RowBlock, read: Read) -> bytes:
    return bytes(ahead.take(block, read) or b"")


def asked(disk: Disk, count: int) -> None:
    for _ in range(count):
        assert disk.asked.acquire(timeout=WAIT_S)


def test_blocks_are_read_while_nobody_takes_them_up_to_the_bound(ahead: ReadAhead, disk: Disk) -> None:
    disk.may_read.release(1000)
    ahead.expect(1, BLOCKS, disk)
    with ahead._changed:
        assert ahead._changed.wait_for(lambda: len(ahead._ready) == AHEAD_BLOCKS and not ahead._reading, WAIT_S)
    assert disk.read == [block.key for block in BLOCKS[:AHEAD_BLOCKS]]
    for block in BLOCKS:
        assert taken(ahead, block, disk) == block.key
    assert sorted(disk.read) == sorted(block.key for block in BLOCKS), "each is read once"


@pytest.mark.parametrize(("size", "count"), [(AHEAD_BYTES // 2, 2), (AHEAD_BYTES // 2 - 1, 3), (AHEAD_BYTES, 1)])
def test_large_ones_are_few(ahead: ReadAhead, size: int, count: int) -> None:
    """As recurrent states of many megabytes, for sequences that wait."""
    rows = memoryview(bytes(size))
    for owner, block in enumerate(BLOCKS):
        ahead.expect(owner, [block], lambda block: rows)
    with ahead._changed:
        assert ahead._changed.wait_for(lambda: len(ahead._ready) == count and not ahead._reading, WAIT_S)
        assert not ahead._has_room()
    assert len(taken(ahead, BLOCKS[0], refused)) == size


def test_a_block_that_is_being_read_is_awaited(ahead: ReadAhead, disk: Disk) -> None:
    ahead.expect(1, BLOCKS[:1], disk)
    asked(disk, 1)
    threading.Timer(0.0, disk.may_read.release).start()
    assert taken(ahead, BLOCKS[0], refused) == BLOCKS[0].key


def test_what_is_not_read_yet_is_read_by_its_taker(ahead: ReadAhead, disk: Disk) -> None:
    ahead.expect(1, BLOCKS[:2], disk)
    asked(disk, 1)
    assert taken(ahead, BLOCKS[1], lambda block: memoryview(b"taker")) == b"taker"
    disk.may_read.release(1000)
    assert taken(ahead, BLOCKS[0], refused) == BLOCKS[0].key
    assert disk.read == [BLOCKS[0].key], "not twice"


def test_nothing_more_is_read_for_one_that_has_left(ahead: ReadAhead, disk: Disk) -> None:
    ahead.expect(1, BLOCKS[:3], disk)
    ahead.expect(2, BLOCKS[3:4], disk)
    asked(disk, 1)
    ahead.forget(1)
    disk.may_read.release(1000)
    assert taken(ahead, BLOCKS[3], disk) == BLOCKS[3].key
    with ahead._changed:
        assert ahead._changed.wait_for(lambda: ahead._reading is None, WAIT_S)
    assert set(disk.read) == {BLOCKS[0].key, BLOCKS[3].key}
    assert not ahead._ready, "what was being read for it is dropped"


def test_a_block_that_is_not_there_yet_is_read_again_by_its_taker(ahead: ReadAhead, disk: Disk) -> None:
    ahead.expect(1, BLOCKS[:1], lambda block: None)
    ahead.expect(1, BLOCKS[1:2], disk)
    asked(disk, 1)
    assert taken(ahead, BLOCKS[0], lambda block: memoryview(b"written meanwhile")) == b"written meanwhile"


def test_an_error_is_met_by_the_taker_and_ends_nothing_else(ahead: ReadAhead, disk: Disk) -> None:
    def no_memory(block: RowBlock) -> memoryview | None:
        raise MemoryError

    disk.may_read.release(1000)
    with capture_logs() as logs:
        ahead.expect(1, BLOCKS[:1], no_memory)
        ahead.expect(1, BLOCKS[1:2], disk)
        asked(disk, 1)
    assert [log["event"] for log in logs] == ["read_ahead_failed"]
    with pytest.raises(MemoryError):
        ahead.take(BLOCKS[0], no_memory)
    assert taken(ahead, BLOCKS[1], refused) == BLOCKS[1].key
