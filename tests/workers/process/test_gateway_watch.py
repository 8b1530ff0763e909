"""The watch on the gateway's pipe."""

import os
import threading
from collections.abc import Iterator

import pytest

from workers.process.gateway_watch import GatewayWatch

PATIENCE_S = 100.0


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    yield reading, writing
    for descriptor in (reading, writing):
        try:
            os.close(descriptor)
        except OSError:
            pass  # the test has closed it


def test_the_end_of_the_file_calls_then_kills(pipe: tuple[int, int]) -> None:
    gone, killed = threading.Event(), threading.Event()
    GatewayWatch(gone.set, kill=killed.set, descriptor=pipe[0], grace_s=0.01).start()
    os.write(pipe[1], b"whatever a gateway may say")
    assert not gone.is_set()
    os.close(pipe[1])
    assert gone.wait(PATIENCE_S)
    assert killed.wait(PATIENCE_S)


def test_a_process_that_ends_by_itself_is_not_killed(pipe: tuple[int, int]) -> None:
    killed = threading.Event()
    watch = GatewayWatch(lambda: watch.end(), kill=killed.set, descriptor=pipe[0], grace_s=PATIENCE_S)
    watch.start()
    os.close(pipe[1])
    watch._thread.join(PATIENCE_S)
    assert not watch._thread.is_alive()
    assert not killed.is_set()


def test_no_callback_follows_the_end(pipe: tuple[int, int]) -> None:
    called = threading.Event()
    watch = GatewayWatch(called.set, kill=called.set, descriptor=pipe[0])
    watch.start()
    watch.end()
    os.close(pipe[1])
    watch._thread.join(PATIENCE_S)
    assert not called.is_set()


def test_a_closed_descriptor_means_that_the_gateway_is_gone(pipe: tuple[int, int]) -> None:
    gone, killed = threading.Event(), threading.Event()
    os.close(pipe[0])
    GatewayWatch(gone.set, kill=killed.set, descriptor=pipe[0], grace_s=0.0).start()
    assert gone.wait(PATIENCE_S)
    assert killed.wait(PATIENCE_S)


def test_the_process_is_killed_although_the_callback_raises(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    killed = threading.Event()

    def fail() -> None:
        raise ValueError

    GatewayWatch(fail, kill=killed.set, descriptor=pipe[0], grace_s=0.0).start()
    os.close(pipe[1])
    assert killed.wait(PATIENCE_S)
