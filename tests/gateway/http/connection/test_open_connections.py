"""The count of open connections, which other processes may share."""

import gc
import socket

from gateway.http.connection.open_connections import OpenConnections


def connections(count: int) -> list[socket.socket]:
    return [socket.socket() for _ in range(count)]


def test_those_that_are_closed_do_not_count() -> None:
    opened, noted = OpenConnections(), list[int]()
    opened.note = noted.append
    held = connections(3)
    for number in range(3):
        opened.add(held[number])
    assert (opened.count, noted) == (3, [1, 2, 3])
    held[0].close()
    assert opened.count == 2, "it is closed, and known"
    assert not opened.reach(3)
    assert noted[-1] == 2, "at the bound they are counted anew"
    held.pop(0)
    gc.collect()
    assert noted[-1] == 2
    held.pop().close()
    gc.collect()
    assert (opened.count, noted[-1]) == (1, 1)
    held[0].close()


def test_those_of_other_processes_count() -> None:
    opened = OpenConnections()
    others = 0
    opened.elsewhere = lambda: others
    (one,) = connections(1)
    opened.add(one)
    assert [opened.reach(count) for count in (1, 2)] == [True, False]
    others = 4
    assert [opened.reach(count) for count in (5, 6)] == [True, False]
    one.close()
    assert [opened.reach(count) for count in (4, 5)] == [True, False]
