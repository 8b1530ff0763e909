"""The mailbox: its bounds at their edges, its order, and cancelled readers."""

from collections import deque

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.mailbox import Mailbox, MailboxClosed, MailboxFull

pytestmark = pytest.mark.anyio


def test_the_bound_and_the_reserve() -> None:
    box: Mailbox[int] = Mailbox(capacity=2, reserve=1)
    box.post_nowait(1)
    box.post_nowait(2)
    with pytest.raises(MailboxFull, match="2 messages"):
        box.post_nowait(3)
    box.post_nowait(4, urgent=True)
    with pytest.raises(MailboxFull, match="3 messages"):
        box.post_nowait(5, urgent=True)
    box.post_promised(6)
    assert [box.receive_nowait() for _ in range(4)] == [1, 2, 4, 6]
    with pytest.raises(LookupError):
        box.receive_nowait()


@pytest.mark.parametrize(("capacity", "reserve", "field"), [(0, 0, "capacity"), (1, -1, "reserve")])
def test_bounds_that_make_no_sense(capacity: int, reserve: int, field: str) -> None:
    with pytest.raises(ValueError, match=field):
        Mailbox(capacity, reserve)


def test_a_closed_mailbox_takes_nothing_and_gives_what_it_has() -> None:
    box: Mailbox[int] = Mailbox()
    box.post_nowait(1)
    box.close()
    box.close()
    with pytest.raises(MailboxClosed):
        box.post_nowait(2)
    box.post_promised(3)
    assert len(box) == 1
    assert box.receive_nowait() == 1
    with pytest.raises(MailboxClosed):
        box.receive_nowait()


def test_clear_gives_back_what_waited() -> None:
    box: Mailbox[int] = Mailbox()
    box.post_nowait(1)
    box.post_nowait(2)
    assert box.clear() == [1, 2]
    assert len(box) == 0


async def test_a_waiting_reader_is_woken_by_a_post_and_by_a_close() -> None:
    box: Mailbox[str] = Mailbox()
    heard: list[str] = []

    async def read() -> None:
        heard.append(await box.receive())
        with pytest.raises(MailboxClosed):
            await box.receive()
        heard.append("closed")

    async with anyio.create_task_group() as group:
        group.start_soon(read)
        await anyio.wait_all_tasks_blocked()
        box.post_nowait("one")
        await anyio.wait_all_tasks_blocked()
        assert heard == ["one"]
        box.close()
    assert heard == ["one", "closed"]


async def test_a_cancelled_receive_takes_nothing() -> None:
    box: Mailbox[str] = Mailbox()
    scope = anyio.CancelScope()

    async def read() -> None:
        with scope:
            await box.receive()

    async with anyio.create_task_group() as group:
        group.start_soon(read)
        await anyio.wait_all_tasks_blocked()
        box.post_nowait("kept")
        scope.cancel()
    assert box.clear() in (["kept"], [])
    async with anyio.create_task_group() as group:
        scope = anyio.CancelScope()
        group.start_soon(read)
        await anyio.wait_all_tasks_blocked()
        scope.cancel()
    box.post_nowait("next")
    assert await box.receive() == "next"


STEPS = st.lists(st.sampled_from(["post", "urgent", "promised", "receive", "close"]), max_size=60)


@given(capacity=st.integers(1, 4), reserve=st.integers(0, 3), steps=STEPS)
def test_it_behaves_as_a_bounded_queue(capacity: int, reserve: int, steps: list[str]) -> None:
    box: Mailbox[int] = Mailbox(capacity, reserve)
    model: deque[int] = deque()
    closed = False
    for number, step in enumerate(steps):
        if step == "close":
            box.close()
            closed = True
        elif step == "receive":
            try:
                assert box.receive_nowait() == model.popleft()
            except MailboxClosed:
                assert closed
                assert not model
            except LookupError:
                assert not closed
                assert not model
        elif step == "promised":
            box.post_promised(number)
            if not closed:
                model.append(number)
        else:
            limit = capacity + (reserve if step == "urgent" else 0)
            try:
                box.post_nowait(number, urgent=step == "urgent")
                assert not closed
                assert len(model) < limit
                model.append(number)
            except MailboxFull:
                assert len(model) >= limit
            except MailboxClosed:
                assert closed
        assert len(box) == len(model)
