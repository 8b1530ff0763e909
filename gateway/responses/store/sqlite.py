"""Stored responses in an SQLite file, which survive a restart of the gateway."""

import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import anyio
import anyio.to_thread

from gateway.responses.store.stored import ChainBroken, ChainTooLarge, StoredResponse, StoreUnavailable

APPLICATION = 0x4261746E
"""Marks a file as a store of Baton, in its header."""
VERSION = 1
BUSY_S = 5.0
"""Time to wait for another process that writes the same file."""

Result = TypeVar("Result")

_SCHEMA = """
CREATE TABLE responses (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, used INTEGER NOT NULL, size INTEGER NOT NULL, created INTEGER NOT NULL,
    status TEXT NOT NULL, deadline INTEGER NOT NULL, background INTEGER NOT NULL, previous TEXT NOT NULL,
    echo_bytes INTEGER NOT NULL, response BLOB NOT NULL, inputs BLOB NOT NULL
);
CREATE INDEX responses_by_use ON responses (owner, used, size);
"""
_FIELDS = "id, owner, created, status, deadline, background, previous, echo_bytes, response, inputs"


class SqliteStore:
    """Implements `gateway.responses.store.stored.ResponseStore`. Every use of the file is in a thread, one at a time;
    a response is committed before its client gets the end of it."""

    def __init__(self, path: str, most: int, most_bytes: int) -> None:
        """Open or make the file, which only its owner may read. Raises `StoreUnavailable`."""
        self._path = path
        self._most = most
        self._most_bytes = most_bytes
        self._turn = anyio.CapacityLimiter(1)
        with self._failures():
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
            self._file = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
            try:
                self._prepare()
            except BaseException:
                self._file.close()
                raise

    def _prepare(self) -> None:
        execute = self._file.execute
        tables = execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        kind, version = (execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version"))
        if tables and (kind, version) != (APPLICATION, VERSION):
            problem = "was written by another version" if kind == APPLICATION else "is not a store of Baton"
            raise StoreUnavailable(f"{self._path} {problem}; name another file")
        damage = execute("PRAGMA quick_check(1)").fetchone()[0]
        if damage != "ok":
            raise StoreUnavailable(f"{self._path} is damaged ({damage}); restore or remove it")
        execute("PRAGMA journal_mode=WAL")
        execute("PRAGMA synchronous=NORMAL")
        with self._transaction():  # which a file that may only be read refuses
            execute(f"PRAGMA application_id={APPLICATION}")
            execute(f"PRAGMA user_version={VERSION}")
            if not tables:
                for statement in _SCHEMA.split(";\n"):
                    execute(statement)
            self._trim()

    async def put(self, response: StoredResponse) -> bool:
        if response.size > self._most_bytes:
            return False
        return await self._run(lambda: self._put(response))

    async def get(self, owner: str, response: str) -> StoredResponse | None:
        return await self._run(lambda: self._find(owner, response))

    async def chain(self, owner: str, response: str, most: int) -> Sequence[StoredResponse]:
        return await self._run(lambda: self._chain(owner, response, most))

    async def delete(self, owner: str, response: str) -> bool:
        return await self._run(lambda: self._delete(owner, response))

    def close(self) -> None:
        self._file.close()

    async def _run(self, work: Callable[[], Result]) -> Result:
        """Run `work` in a thread. It is not abandoned when the caller is cancelled."""

        def guarded() -> Result:
            with self._failures():
                return work()

        return await anyio.to_thread.run_sync(guarded, limiter=self._turn)

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise StoreUnavailable(f"{self._path}: {reason}") from error

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._file.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._file.execute("ROLLBACK")
            raise
        self._file.execute("COMMIT")

    def _put(self, response: StoredResponse) -> bool:
        with self._transaction():
            self._file.execute(
                "INSERT OR REPLACE INTO responses VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    *(response.id, response.owner, time.time_ns(), response.size, response.created, response.status),
                    *(response.deadline, response.background, response.previous, response.echo_bytes),
                    *(response.response, response.inputs),
                ),
            )
            self._trim()
        return True

    def _trim(self) -> None:
        """Drop responses until the bounds hold."""
        execute = self._file.execute
        count, size = execute("SELECT count(*), coalesce(sum(size), 0) FROM responses").fetchone()
        while count > self._most or size > self._most_bytes:
            largest = execute("SELECT owner FROM responses GROUP BY owner ORDER BY sum(size) DESC LIMIT 1").fetchone()
            oldest = "SELECT id, size FROM responses WHERE owner = ? ORDER BY used LIMIT 1"
            dropped, bytes_ = execute(oldest, largest).fetchone()
            execute("DELETE FROM responses WHERE id = ?", (dropped,))
            count, size = count - 1, size - bytes_

    def _find(self, owner: str, response: str) -> StoredResponse | None:
        query = f"SELECT {_FIELDS} FROM responses WHERE id = ? AND owner = ?"
        row = self._file.execute(query, (response, owner)).fetchone()
        if row is None:
            return None
        fields = dict(zip(_FIELDS.split(", "), row, strict=True))
        return StoredResponse(**fields | {"background": bool(fields["background"])})

    def _chain(self, owner: str, response: str, most: int) -> Sequence[StoredResponse]:
        found: list[StoredResponse] = []
        size = 0
        while response:
            each = self._find(owner, response)
            if each is None:
                if found:
                    raise ChainBroken
                return []
            size += each.conversation_size
            if size > most:
                raise ChainTooLarge
            found.append(each)
            response = each.previous
        found.reverse()
        now = time.time_ns()
        with self._transaction():
            used = [(now + index, each.id) for index, each in enumerate(found)]
            self._file.executemany("UPDATE responses SET used = ? WHERE id = ?", used)
        return found

    def _delete(self, owner: str, response: str) -> bool:
        done = self._file.execute("DELETE FROM responses WHERE id = ? AND owner = ?", (response, owner))
        return done.rowcount > 0
