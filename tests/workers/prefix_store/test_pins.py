"""Pins: bounded for each owner and for all, the latest first, and never without the blocks before them."""

import errno
import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.workers.prefix_store.test_directory import ROWS, SIZE, Killed, chain
from workers.prefix_store import directory as directories
from workers.prefix_store.directory import StoreDirectory
from workers.prefix_store.pins import MAX_PIN_S, PinnedBlock, decode, encode, most_pinned, owner_key, pin, within

A, B = owner_key("a"), owner_key("b")


def keys(pins: list[PinnedBlock]) -> list[bytes]:
    return [each.key for each in pins]


def test_a_prefix_that_is_pinned_again_is_the_latest_and_ends_no_earlier() -> None:
    first, second = chain(3, seed=1), chain(2, seed=2)
    pins = pin([], A, first, 10, 100.0, 0.0)
    pins = pin(pins, A, second, 10, 50.0, 1.0)
    assert keys(pins) == [block.key for block in (*reversed(first), *reversed(second))]
    pins = pin(pins, A, first[:2], 10, 60.0, 2.0)
    assert keys(pins) == [block.key for block in (first[2], *reversed(second), first[1], first[0])]
    assert {each.until for each in pins if each.key in {block.key for block in first}} == {100.0}
    assert keys(pin(pins, B, [], 10, 0.0, 60.0)) == [block.key for block in (first[2], first[1], first[0])], "ended"
    assert pin(pins, B, [], 10, 0.0, 100.0) == []


def test_each_owner_has_an_eighth_and_all_have_half() -> None:
    pins: list[PinnedBlock] = []
    for number in range(6):
        pins = within(pin(pins, owner_key(str(number)), chain(3, seed=number), 10, 100.0, 0.0), 160)
        assert len([each for each in pins if each.owner == owner_key(str(number))]) == 2, "20 of 160 bytes"
        assert len(pins) == min(8, 2 * (number + 1))
    assert {each.owner for each in pins} == {owner_key(str(number)) for number in range(2, 6)}, "the latest"
    assert keys([each for each in pins if each.owner == owner_key("5")]) == [
        block.key for block in reversed(chain(2, seed=5))
    ], "the first blocks of the prefix"


def test_a_state_has_room_beside_the_blocks_before_it() -> None:
    assert [most_pinned(most, 10, 25) for most in (80, 279, 280, 360)] == [0, 0, 1, 2]
    state = chain(4)[3:]
    for most, kept in ((279, 3), (280, 1), (360, 2)):
        blocks = chain(3)[: most_pinned(most, 10, 25)] if kept < 3 else chain(3)
        pins = pin(pin([], A, state, 25, 100.0, 0.0), A, blocks, 10, 100.0, 0.0)
        assert len(within(pins, most)) == kept + (kept < 3), "without room, all blocks displace it"


@pytest.mark.parametrize(("most", "count"), [(159, 1), (160, 2), (239, 2), (240, 3)])
def test_the_bound_of_an_owner_at_its_edge(most: int, count: int) -> None:
    assert most_pinned(most, 10) == count
    assert len(within(pin([], A, chain(3), 10, 100.0, 0.0), most)) == count


def test_another_owner_takes_no_pin_from_one_within_its_bound() -> None:
    pins = pin([], A, chain(2, seed=1), 10, 100.0, 0.0)
    for number in range(50):
        pins = within(pin(pins, B, chain(3, seed=number), 10, 100.0, 0.0), 160)
    assert len([each for each in pins if each.owner == A]) == 2


def test_a_damaged_file_has_no_pins() -> None:
    pins = pin([], A, chain(3), 10, 100.0, 0.0)
    data = encode(pins)
    assert decode(data) == pins
    assert decode(encode([])) == []
    for at in range(len(data)):
        assert decode(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]) == [], at
        assert decode(data[:at]) == [], at


def test_pinned_blocks_are_evicted_last_and_like_others_when_their_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directories, "SLACK_SHARE", 0.0)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    directory = StoreDirectory(tmp_path / "store", 16 * SIZE, temporary=False)
    pinned = chain(3, seed=1)
    for block in pinned:
        assert directory.write(block, ROWS)
        os.utime(directory.file(block), (1000, 1000))
    directory.pin("a", pinned, len(ROWS), 300.0)
    for seed in range(2, 40):
        assert directory.write(chain(1, seed=seed)[0], ROWS)
    assert [directory.file(block).exists() for block in pinned] == [True, True, False], "an eighth of 16 blocks"
    now += 300.0
    for seed in range(40, 60):
        assert directory.write(chain(1, seed=seed)[0], ROWS)
    assert not any(directory.file(block).exists() for block in pinned)
    directory.close()


def test_a_pin_ends_after_a_day_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1e9)
    directory = StoreDirectory(tmp_path / "store", 16 * SIZE, temporary=False)
    directory.pin("a", chain(1), len(ROWS), 1e9)
    assert [each.until for each in directory._pins()] == [1e9 + MAX_PIN_S]
    directory.close()


def test_the_bound_of_the_bytes_holds_with_pins_of_a_process_with_a_larger_one(tmp_path: Path) -> None:
    large = StoreDirectory(tmp_path / "store", 64 * SIZE, temporary=False)
    small = StoreDirectory(tmp_path / "store", 4 * SIZE, temporary=False)
    pinned = chain(8)
    for block in pinned:
        large.write(block, ROWS)
    large.pin("a", pinned, len(ROWS), 300.0)
    assert small.write(chain(1, seed=5)[0], ROWS)
    assert small.used_bytes <= 4 * SIZE
    assert [small.file(block).exists() for block in pinned[:2]] == [True, True]
    large.close()
    small.close()


@pytest.mark.parametrize(("back", "kept"), [(MAX_PIN_S, True), (MAX_PIN_S + 1, False)])
def test_a_pin_from_before_the_clock_was_set_back_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, back: float, kept: bool
) -> None:
    """By up to a day it lasts longer; by more it would last for as long as the clock was wrong."""
    now = 1e9
    monkeypatch.setattr(time, "time", lambda: now)
    directory = StoreDirectory(tmp_path / "store", 16 * SIZE, temporary=False)
    (block,) = chain(1)
    directory.pin("a", [block], len(ROWS), MAX_PIN_S)
    now -= back
    directory.pin("b", [], len(ROWS), 1.0)
    assert [each.key for each in directory._pins()] == [block.key] * kept
    directory.close()


@pytest.mark.parametrize("failing", ["write_bytes", "replace"])
def test_pins_outlive_a_process_that_is_killed_or_finds_no_room_while_it_writes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    directory = StoreDirectory(tmp_path / "store", 16 * SIZE, temporary=False)
    first, second = chain(2)
    directory.pin("a", [first], len(ROWS), 300.0)
    write = Path.write_bytes

    def fail(file: Path, data: Any) -> None:
        if failing == "write_bytes":
            write(file, data[:-7])
        raise error

    for error in (Killed(), OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))):
        with monkeypatch.context() as patch:
            patch.setattr(Path, failing, fail)
            with pytest.raises(type(error)):
                directory.pin("b", [second], len(ROWS), 300.0)
        assert [each.key for each in directory._pins()] == [first.key]
    assert not [file.name for file in directory.path.iterdir() if file.name.startswith("pins-")]
    directory.pin("b", [second], len(ROWS), 300.0)
    assert [each.key for each in directory._pins()] == [first.key, second.key]
    directory.close()


def test_a_file_of_pins_that_is_damaged_costs_no_block_and_no_later_pin(tmp_path: Path) -> None:
    directory = StoreDirectory(tmp_path / "store", 16 * SIZE, temporary=False)
    (block,) = chain(1)
    directory.write(block, ROWS)
    directory.pin("a", [block], len(ROWS), 300.0)
    file = directory.path / "pins"
    file.write_bytes(file.read_bytes()[:-7])
    assert directory._pins() == []
    directory.pin("a", [block], len(ROWS), 300.0)
    assert len(directory._pins()) == 1
    assert directory.file(block).exists()
    directory.close()
