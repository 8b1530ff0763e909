"""Both stores keep responses by their owner, within bounds; the file survives a restart."""

import os
import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from gateway.responses.items.input_schema import InputItem
from gateway.responses.store.memory import MemoryStore
from gateway.responses.store.opening import open_store
from gateway.responses.store.recording import Recording
from gateway.responses.store.sqlite import SqliteStore
from gateway.responses.store.stored import (
    ENTRY_BYTES,
    ChainBroken,
    ChainTooLarge,
    ResponseStore,
    StoredResponse,
    StoreUnavailable,
)
from gateway.settings import GatewaySettings, GatewaySettingsError

pytestmark = pytest.mark.anyio

Open = Callable[..., ResponseStore]
KIB = 1024


def stored(name: str, owner: str = "a", previous: str = "", size: int = 0, **fields: Any) -> StoredResponse:
    """A response of about so many bytes."""
    values: dict[str, Any] = {"created": 1, "status": "completed", "response": b"x" * size, "inputs": b"[]"}
    return StoredResponse(id=name, owner=owner, previous=previous, **values | fields)


@pytest.fixture(params=["memory", "sqlite"])
async def opened(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Open]:
    made: list[ResponseStore] = []

    def make(most: int = 100, most_bytes: int = KIB * KIB) -> ResponseStore:
        if request.param == "memory":
            made.append(MemoryStore(most, most_bytes))
        else:
            made.append(SqliteStore(str(tmp_path / f"{len(made)}.db"), most, most_bytes))
        return made[-1]

    yield make
    for store in made:
        store.close()


async def test_what_is_put_is_found_by_its_owner_alone(opened: Open) -> None:
    store = opened()
    response = stored("r", deadline=7, background=True, status="queued", echo_bytes=3)
    assert await store.put(response)
    assert await store.get("a", "r") == response
    assert await store.get("b", "r") is None
    assert await store.chain("b", "r", KIB) == []
    assert not await store.delete("b", "r")
    assert await store.delete("a", "r")
    assert not await store.delete("a", "r")
    assert await store.get("a", "r") is None


async def test_a_state_replaces_the_one_before(opened: Open) -> None:
    store = opened(most=1)
    await store.put(stored("r", status="queued"))
    await store.put(stored("r", status="completed"))
    found = await store.get("a", "r")
    assert found is not None
    assert found.status == "completed"


async def test_a_chain_has_the_oldest_response_first(opened: Open) -> None:
    store = opened()
    for name, previous in (("1", ""), ("2", "1"), ("3", "2"), ("other", "1")):
        await store.put(stored(name, previous=previous))
    assert [each.id for each in await store.chain("a", "3", KIB * KIB)] == ["1", "2", "3"]
    assert await store.chain("a", "none", KIB) == []
    with pytest.raises(ChainTooLarge):
        await store.chain("a", "3", 3 * ENTRY_BYTES)
    await store.delete("a", "1")
    with pytest.raises(ChainBroken):
        await store.chain("a", "3", KIB * KIB)


async def test_over_the_bound_the_one_that_was_not_used_for_the_longest_time_is_dropped(opened: Open) -> None:
    store = opened(most=3)
    for name, previous in (("1", ""), ("2", "1"), ("3", "")):
        await store.put(stored(name, previous=previous))
    await store.chain("a", "2", KIB * KIB)  # uses 1 and 2
    await store.put(stored("4"))
    assert [name for name in "1234" if await store.get("a", name)] == ["1", "2", "4"]


async def test_the_bytes_are_bounded(opened: Open) -> None:
    store = opened(most_bytes=8 * KIB)
    for number in range(20):
        await store.put(stored(str(number), size=KIB))
    left = [number for number in range(20) if await store.get("a", str(number))]
    assert left == list(range(15, 20))
    assert not await store.put(stored("large", size=8 * KIB))
    assert [number for number in range(20) if await store.get("a", str(number))] == left


async def test_the_owner_with_the_most_bytes_loses_a_response(opened: Open) -> None:
    store = opened(most=4)
    await store.put(stored("mine", owner="b"))
    for name in "123456":
        await store.put(stored(name))
    assert await store.get("b", "mine")
    assert [name for name in "123456" if await store.get("a", name)] == ["4", "5", "6"]


async def test_uses_from_many_tasks_do_not_mix(opened: Open) -> None:
    store = opened()
    await store.put(stored("0"))

    async def use(number: int) -> None:
        await store.put(stored(str(number), previous="0"))
        assert [each.id for each in await store.chain("a", str(number), KIB * KIB)] == ["0", str(number)]

    async with anyio.create_task_group() as group:
        for number in range(1, 40):
            group.start_soon(use, number)
    for number in range(40):
        assert await store.get("a", str(number))


async def test_the_file_survives_and_is_private(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    store = SqliteStore(str(path), 10, KIB * KIB)
    for name, previous in (("1", ""), ("2", "1")):
        await store.put(stored(name, previous=previous, size=100))
    store.close()
    assert path.stat().st_mode & 0o777 == 0o600
    again = SqliteStore(str(path), 1, KIB * KIB)
    # The bound is a smaller one now.
    assert await again.get("a", "1") is None
    assert await again.get("a", "2") == stored("2", previous="1", size=100)
    again.close()


def foreign(path: Path) -> None:
    file = sqlite3.connect(path)
    file.execute("CREATE TABLE things (name TEXT)")
    file.close()


def newer(path: Path) -> None:
    SqliteStore(str(path), 1, KIB).close()
    file = sqlite3.connect(path)
    file.execute("PRAGMA user_version=99")
    file.close()


def damaged(path: Path) -> None:
    """Pages in the middle of a store are overwritten."""
    store = SqliteStore(str(path), 100, KIB * KIB)
    with store._transaction():
        for number in range(50):
            store._file.execute(
                "INSERT INTO responses VALUES (?, 'a', ?, 0, 0, '', 0, 0, '', 0, ?, x'')",
                (f"r{number}", number, b"x" * 3000),
            )
    store.close()
    content = bytearray(path.read_bytes())
    for begin in range(4096, len(content), 4096):
        content[begin : begin + 64] = b"\xaa" * 64
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("prepare", "problem"),
    [
        (lambda path: path.write_bytes(b"not a database" * 100), "file is not a database"),
        (foreign, "is not a store of Baton"),
        (newer, "was written by another version"),
        (damaged, "malformed|damaged"),
        (Path.mkdir, "Is a directory"),
    ],
    ids=["text", "foreign", "newer", "damaged", "folder"],
)
async def test_a_file_that_is_no_store_is_refused_with_its_name(tmp_path: Path, prepare: Any, problem: str) -> None:
    path = tmp_path / "store.db"
    prepare(path)
    with pytest.raises(StoreUnavailable, match=problem) as caught:
        SqliteStore(str(path), 1, KIB)
    assert str(path) in str(caught.value)


async def test_a_folder_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="No such file"):
        SqliteStore(str(tmp_path / "none" / "store.db"), 1, KIB)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
async def test_a_file_that_may_only_be_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    SqliteStore(str(path), 1, KIB).close()
    path.chmod(0o400)
    with pytest.raises(StoreUnavailable, match="Permission denied"):
        SqliteStore(str(path), 1, KIB)


async def test_a_file_that_fails_later_is_an_error_of_its_own(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "store.db"), 1, KIB)
    store._file.execute("PRAGMA query_only=1")
    with pytest.raises(StoreUnavailable, match="readonly"):
        await store.put(stored("1"))
    store.close()


@pytest.mark.parametrize("setting", ["", "file", "sqlite:", "SQLITE:x"])
def test_a_store_of_no_known_kind_is_refused(setting: str) -> None:
    with pytest.raises(GatewaySettingsError, match="store is"):
        GatewaySettings(store=setting)


async def test_the_setting_names_the_store(tmp_path: Path) -> None:
    assert isinstance(open_store(GatewaySettings()), MemoryStore)
    assert open_store(GatewaySettings(store="none")) is None
    found = open_store(GatewaySettings(store=f"sqlite:{tmp_path}/a.db"))
    assert isinstance(found, SqliteStore)
    found.close()


def test_the_input_of_a_response_is_encoded_once() -> None:
    """Clients ask for a response in the background until it has ended."""
    items = [InputItem(role="user", content="hi")]
    recording = Recording(MemoryStore(9, 1 << 20), "o", items, previous="", echo_bytes=0)
    first, last = (recording.stored("resp_x", status, b"{}") for status in ("queued", "completed"))
    assert b'"hi"' in first.inputs
    assert last.inputs is first.inputs
