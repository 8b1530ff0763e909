"""A session with a child process, whose engine is scripted."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.measurement.rounds import RefusedError
from bench.peers.child import ChildSession
from tests.bench.peers.children import write_child


@pytest.fixture
def session(tmp_path: Path) -> Iterator[ChildSession]:
    session = ChildSession(sys.executable, write_child(tmp_path), {"first": 7}, {})
    yield session
    session.close()


def test_rates_come_from_the_steps_of_the_child(session: ChildSession) -> None:
    assert session.decode(2, 16, 32) == 8.0
    assert session.prefill(100) == 50.0


def test_tokens_are_returned_and_counted(session: ChildSession) -> None:
    assert session.complete([1, 2], 3) == [7, 8, 9]
    assert session.generate([[1], [2]], 5) == 10


def test_a_child_that_ends_refuses_with_its_last_words(session: ChildSession) -> None:
    for _ in range(2):
        with pytest.raises(RefusedError, match="its process ended with status 1: too many prompts"):
            session.decode(5, 16, 32)


def test_a_child_that_cannot_load_refuses(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match=r"status 1: ValueError: no such precision$"):
        ChildSession(sys.executable, write_child(tmp_path), {"refuse": "no such precision"}, {})
