"""The mailbox and its dispatcher: bounds at their edges, order, and turns."""

import asyncio
from collections import deque
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.mailbox import CAPACITY, RESERVE, TURN, Dispatcher, Mailbox, MailboxFull

pytestmark = pytest.mark.anyio


def opened(dispatcher: Dispatcher, handle: Callable[[int], None]) -> Mailbox[int]:
    box: Mailbox[int] = Mailbox(dispatcher, handle)
    box.open()
    return box


async def test_the_bound_and_the_reserve() -> None:
    handled: list[int] = []
    box: Mailbox[int] = Mailbox(Dispatcher(), handled.append)
    for number in range(CAPACITY):
        box.post(number)
    with pytest.raises(MailboxFull, match=f"{CAPACITY} messages"):
        box.post(-1)
    for number in range(RESERVE):
        box.post(CAPACITY + number, urgent=True)
    with pytest.raises(MailboxFull, match=f"{CAPACITY + RESERVE} messages"):
        box.post(-1, urgent=True)
    box.post_reserved(CAPACITY + RESERVE)
    assert handled == [], "nothing is delivered before it is opened"
    box.open()
    for _ in range(2):
        await asyncio.sleep(0)
    assert handled == list(range(CAPACITY + RESERVE + 1)), "what is urgent overtakes nothing"


async def test_a_post_is_handled_before_it_returns() -> None:
    handled: list[int] = []
    box = opened(Dispatcher(), handled.append)
    box.post(1)
    assert handled == [1]


async def test_a_handler_is_never_run_inside_another() -> None:
    dispatcher = Dispatcher()
    steps: list[str] = []

    def first(message: int) -> None:
        steps.append(f"first {message}")
        if message < 3:
            second_box.post(message)
            first_box.post(message + 1)
        steps.append("returned")

    first_box = opened(dispatcher, first)
    second_box = opened(dispatcher, lambda message: steps.append(f"second {message}"))
    first_box.post(1)
    turns = ["first 1", "returned", "second 1", "first 2", "returned", "second 2", "first 3", "returned"]
    assert steps == turns, "mailboxes take turns"


async def test_what_waits_is_handled_after_a_handler_was_interrupted() -> None:
    handled: list[int] = []

    def interrupted(message: int) -> None:
        handled.append(message)
        if message == 1:
            box.post(2)
            raise KeyboardInterrupt

    box = opened(Dispatcher(), interrupted)
    with pytest.raises(KeyboardInterrupt):
        box.post(1)
    box.post(3)
    await asyncio.sleep(0)
    assert handled == [1, 2, 3]


async def test_much_to_do_lets_other_callbacks_run() -> None:
    dispatcher = Dispatcher()
    handled: list[int] = []

    def again(message: int) -> None:
        handled.append(message)
        if message < 3 * TURN:
            box.post(message + 1)

    box = opened(dispatcher, again)
    box.post(1)
    assert len(handled) == TURN
    box.post(0)
    assert len(handled) == TURN, "what is posted meanwhile waits its turn"
    await asyncio.sleep(0)
    assert handled[TURN : TURN + 2] == [TURN + 1, 0]
    assert len(handled) == 2 * TURN


async def test_what_was_cleared_is_not_delivered() -> None:
    handled: list[int] = []

    def clearing(message: int) -> None:
        handled.append(message)
        box.clear()

    dispatcher = Dispatcher()
    box = Mailbox[int](dispatcher, clearing)
    box.post(1)
    box.post(2)
    box.open()
    box.post(3)
    assert handled == [1, 3]


STEPS = st.lists(st.sampled_from(["post", "urgent", "reserved", "take", "take 100"]), max_size=60)


@given(steps=STEPS, waiting=st.integers(CAPACITY - 3, CAPACITY + RESERVE))
def test_it_behaves_as_a_bounded_queue(steps: list[str], waiting: int) -> None:
    handled: list[int] = []
    with asyncio.Runner() as runner:
        dispatcher = runner.run(_made())
    box: Mailbox[int] = Mailbox(dispatcher, handled.append)
    model: deque[int] = deque(range(waiting))
    for number in model:
        box.post_reserved(number)
    taken: list[int] = []
    for number, step in enumerate(steps, waiting):
        if step.startswith("take"):
            for _ in range(min(len(model) - 1, int(step[5:] or 1))):
                taken.append(model.popleft())
                assert box.deliver() == bool(model)
        elif step == "reserved":
            box.post_reserved(number)
            model.append(number)
        else:
            urgent = step == "urgent"
            try:
                box.post(number, urgent)
                assert len(model) < CAPACITY + (RESERVE if urgent else 0)
                model.append(number)
            except MailboxFull:
                assert len(model) >= CAPACITY + (RESERVE if urgent else 0)
        assert handled == taken


async def _made() -> Dispatcher:
    return Dispatcher()
