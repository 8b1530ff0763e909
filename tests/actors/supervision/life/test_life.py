"""A worker's life as a state machine: inputs and times in, decisions out."""

import pytest

from actors.process.exit_cause import Origin
from actors.supervision.messages import (
    DrainWorker,
    Ended,
    EndIncarnation,
    Exited,
    Frames,
    Input,
    LinkLost,
    Loss,
    Observation,
    SendCommand,
    Started,
    StartIncarnation,
    StartWorker,
    StopWorker,
)
from actors.supervision.worker import (
    IncarnationLost,
    WorkerChanged,
    WorkerEvent,
    WorkerState,
    WorkerUnavailable,
)
from protocol.bounds import PROTOCOL_VERSION
from protocol.commands import Cancel, Stop, Welcome
from protocol.errors import ByeReason
from protocol.events import Bye, Loading
from tests.actors.supervision.lives import IDLE, LIMITS, READY, STEP, LifeDriver, running
from tests.actors.supervision.processes import submit


def test_from_its_start_to_its_end() -> None:
    driver = LifeDriver()
    assert not driver.life.running
    assert driver.take(StartWorker()) == [StartIncarnation(1, None)]
    assert driver.take(StartWorker()) == [], "it is started already"
    driver.started()
    assert (driver.state, driver.life.status.pid) == (WorkerState.STARTING, 7)
    driver.frames(driver.hello())
    assert (driver.kinds(), driver.of(SendCommand)) == (["SendCommand"], [SendCommand(Welcome(1))])
    driver.frames(Loading("weights", 1, 2), READY)
    assert [each.status.state for each in driver.of(WorkerChanged)] == [WorkerState.LOADING, WorkerState.READY]
    assert driver.frames(STEP, IDLE) == [WorkerEvent("w", 1, STEP), WorkerEvent("w", 1, IDLE)]
    driver.take(StopWorker())
    assert driver.of(SendCommand) == [SendCommand(Stop())]
    driver.frames(STEP, Bye(ByeReason.STOPPED, ""))
    assert driver.kinds() == ["WorkerEvent", "EndIncarnation"]
    assert driver.of(EndIncarnation) == [EndIncarnation(LIMITS.stop)], "it leaves by itself"
    assert driver.lost == []
    driver.ended()
    assert driver.kinds() == ["CloseLink", "IncarnationLost"]
    assert driver.of(IncarnationLost) == [IncarnationLost("w", 1, "stopped", Origin.OUTSIDE, asked=True)]
    (change,) = driver.of(WorkerChanged)
    assert (change.status.state, change.status.running, change.status.pid) == (WorkerState.STOPPED, False, None)


def test_nothing_is_taken_from_one_that_broke_the_protocol() -> None:
    driver = running()
    message = driver.message(STEP)
    driver.take(Frames(1, [*message.frames, b"not a frame", *message.frames]))
    assert driver.kinds() == ["WorkerEvent", "CloseLink", "IncarnationLost", "EndIncarnation"]
    ((_, reason),) = driver.lost
    assert reason.startswith("it broke the protocol: ")
    assert driver.frames(STEP) == []
    assert driver.rejections.total["frame"] == 1


def test_nothing_is_taken_from_another_process_than_the_one_that_was_started() -> None:
    driver = LifeDriver()
    driver.take(StartWorker(), Started(7))
    driver.take(driver.message(driver.hello(), fault="process 9 said Hello"))
    assert driver.life.status.last_failure is not None
    assert driver.life.status.last_failure.reason == "it broke the protocol: process 9 said Hello"
    assert (driver.of(SendCommand), driver.lost) == ([], [])
    assert driver.of(EndIncarnation) == [EndIncarnation(0.0)]


def test_what_is_about_an_earlier_incarnation_has_no_effect() -> None:
    driver = running()
    old: list[Input] = [
        driver.message(STEP),
        Exited(1, "exited", Origin.WITHIN, clean=False),
        LinkLost(1, "gone", Origin.WITHIN, final=True),
        Ended(1),
    ]
    driver.exits()
    driver.link_lost()
    driver.ended()
    driver.later(2.0)
    driver.ready()
    assert driver.number == 2
    assert driver.take(*old) == []
    assert driver.state is WorkerState.READY


def test_one_that_cannot_be_welcomed_gets_the_reason_and_leaves_by_itself() -> None:
    driver = LifeDriver()
    driver.take(StartWorker(), Started(7))
    driver.frames(driver.hello(protocol=PROTOCOL_VERSION + 1))
    refusal = Welcome(1, refusal="protocol version 4 is not 3")
    assert driver.of(SendCommand) == [SendCommand(refusal)]
    assert driver.of(EndIncarnation) == [EndIncarnation(LIMITS.stop)]
    driver.ended()
    assert driver.state is WorkerState.GIVEN_UP
    assert driver.rejections.total["version"] == 1


class TestLooks:
    def test_a_hang_is_attributed_as_the_peer_says(self) -> None:
        driver = running()
        driver.life.sent([submit()], driver.now)
        for _ in range(21):
            driver.frames(IDLE)
            driver.later(1.0, Observation(hang_origin=Origin.OUTSIDE))
        assert driver.lost == [(1, "no step finished with work in flight for 20 s")]
        lost = next(each for each in driver.decisions if isinstance(each, IncarnationLost))
        assert lost.origin is Origin.OUTSIDE

    def test_after_a_stall_of_our_own_it_has_one_more_chance(self) -> None:
        driver = running()
        driver.stall(60.0)
        assert driver.lost == []
        driver.frames(IDLE)
        driver.later(7.9)
        assert driver.lost == []
        driver = running()
        driver.stall(60.0)
        driver.later(1.0)
        assert driver.lost == [(1, "no frame for 8 s")]

    def test_one_that_sends_something_after_each_stall_of_our_own_is_never_late(self) -> None:
        """As a gateway that is stopped and continued many times, however soon after each other."""
        driver = running()
        for _ in range(10):
            driver.stall(60.0)
            driver.now += 0.01
            driver.frames(IDLE)
        assert driver.lost == []
        driver.stall(60.0)
        driver.stall(60.0)
        assert driver.lost == [(1, "no frame for 8 s")]

    def test_one_that_is_suspended_for_good_is_ended_at_its_limit_and_not_before(self) -> None:
        driver = running()
        driver.later(1.99, Observation(suspended=True))
        assert driver.lost == []
        driver.later(0.51, Observation(suspended=True))
        assert driver.lost == [(1, "it was suspended for 2 s")]

    def test_one_that_continues_or_sends_something_in_between_begins_anew(self) -> None:
        driver = running()
        for _ in range(10):
            driver.later(1.5, Observation(suspended=True))
            driver.later(0.5, Observation())
            driver.frames(IDLE)
        for _ in range(10):
            driver.later(1.5, Observation(suspended=True))
            driver.frames(IDLE)
        assert driver.lost == []

    def test_a_message_that_breaks_the_links_bounds_is_the_end(self) -> None:
        driver = running()
        driver.later(1.1, Observation(dropped=True))
        assert driver.lost == [(1, "it sent a message that breaks the link's bounds")]


def test_what_it_takes_depends_on_its_state() -> None:
    driver = LifeDriver()

    def refusal(*commands: Cancel | Stop) -> str:
        with pytest.raises(WorkerUnavailable) as refused:
            driver.life.check_sendable(commands)
        return str(refused.value)

    assert refusal(Cancel(1)) == "worker 'w' is stopped: no process"
    driver.take(StartWorker())
    assert refusal(Cancel(1)) == "worker 'w' is starting"
    driver.ready()
    driver.life.check_sendable([submit(), Cancel(1)])
    driver.take(DrainWorker(30.0))
    driver.life.check_sendable([Cancel(1), Cancel(2)])
    assert refusal(Cancel(1), Stop()) == "worker 'w' is draining"
    driver.take(Loss("a failure"))
    assert refusal(Cancel(1)) == "worker 'w' is backoff: a failure"
