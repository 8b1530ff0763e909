"""A worker's life is pure: inputs and times in, decisions out."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.process.exit_cause import Origin
from actors.supervision.messages import (
    Admit,
    Decision,
    DeclineJoin,
    DrainWorker,
    Ended,
    EndIncarnation,
    Exempt,
    Exited,
    Frames,
    Input,
    LinkLost,
    Loss,
    NotSent,
    Observation,
    RestartWorker,
    SendCommand,
    Started,
    StartIncarnation,
    StartWorker,
    StopWorker,
)
from actors.supervision.restart_policy import RestartPolicy
from actors.supervision.worker import (
    GraceEnded,
    IncarnationLost,
    WorkerChanged,
    WorkerEvent,
    WorkerState,
    WorkerUnavailable,
)
from protocol.bounds import PROTOCOL_VERSION
from protocol.commands import Cancel, Drain, Stop, Welcome
from protocol.errors import ByeReason
from protocol.events import Bye, Gauges, Heartbeat, Loading, Step
from tests.actors.supervision.lives import LIMITS, POLICY, READY, Story, request
from tests.actors.supervision.processes import submit

STEP, IDLE, BUSY = Step(deltas=()), Heartbeat(Gauges()), Heartbeat(Gauges(slots_active=1))


def running(policy: RestartPolicy = POLICY) -> Story:
    """A worker of this machine that takes requests."""
    story = Story(policy=policy)
    story.take(StartWorker())
    return story.ready()


def test_from_its_start_to_its_end() -> None:
    story = Story()
    assert not story.life.running
    assert story.take(StartWorker()) == [StartIncarnation(1, None)]
    assert story.take(StartWorker()) == [], "it is started already"
    story.started()
    assert (story.state, story.life.status.pid) == (WorkerState.STARTING, 7)
    story.frames(story.hello())
    assert (story.kinds(), story.of(SendCommand)) == (["SendCommand"], [SendCommand(Welcome(1))])
    story.frames(Loading("weights", 1, 2), READY)
    assert [each.status.state for each in story.of(WorkerChanged)] == [WorkerState.LOADING, WorkerState.READY]
    assert story.frames(STEP, IDLE) == [WorkerEvent("w", 1, STEP), WorkerEvent("w", 1, IDLE)]
    story.take(StopWorker())
    assert story.of(SendCommand) == [SendCommand(Stop())]
    story.frames(STEP, Bye(ByeReason.STOPPED, ""))
    assert story.kinds() == ["WorkerEvent", "EndIncarnation"]
    assert story.of(EndIncarnation) == [EndIncarnation(LIMITS.stop)], "it leaves by itself"
    assert story.lost == []
    story.ended()
    assert story.kinds() == ["CloseLink", "IncarnationLost"]
    assert story.of(IncarnationLost) == [IncarnationLost("w", 1, "stopped", Origin.OUTSIDE, asked=True)]
    (change,) = story.of(WorkerChanged)
    assert (change.status.state, change.status.running, change.status.pid) == (WorkerState.STOPPED, False, None)


class TestExit:
    """A death is reported when its last frames have been taken, and attributed by what the exit reports."""

    def test_it_is_judged_when_its_link_has_ended_too(self) -> None:
        story = running()
        story.exits()
        assert story.new == []
        assert story.frames(STEP) == [WorkerEvent("w", 1, STEP)]
        story.link_lost()
        assert story.kinds() == ["CloseLink", "IncarnationLost", "EndIncarnation"]
        assert story.lost == [(1, "its process exited with status 3")]
        assert story.of(EndIncarnation) == [EndIncarnation(0.0)]

    def test_or_after_a_while(self) -> None:
        story = running()
        story.exits()
        story.later(0.99)
        assert story.lost == []
        story.later(0.01)
        assert story.lost == [(1, "its process exited with status 3")]

    def test_the_end_of_its_link_waits_for_the_exit_that_explains_it(self) -> None:
        story = running()
        story.link_lost()
        story.later(0.5)
        story.exits("was killed by SIGKILL", Origin.OUTSIDE)
        assert story.lost == [(1, "its process was killed by SIGKILL")]
        assert story.of(IncarnationLost)[0].origin is Origin.OUTSIDE

    @pytest.mark.parametrize("final", [False, True], ids=["no exit comes", "no exit can explain it"])
    def test_without_one_it_is_the_link_that_was_lost(self, final: bool) -> None:
        story = running()
        story.link_lost(final)
        if not final:
            assert story.lost == []
            story.later(1.0)
        assert story.lost == [(1, "its link was lost: the peer's connection ended")]

    def test_one_that_said_sent_no_hello_is_reported_to_nobody(self) -> None:
        story = Story()
        story.take(StartWorker(), Started(7))
        story.exits()
        assert (story.kinds(), story.lost) == (["CloseLink", "EndIncarnation"], [])
        assert story.state is WorkerState.BACKOFF

    @pytest.mark.parametrize(("clean", "state"), [(True, WorkerState.STOPPED), (False, WorkerState.BACKOFF)])
    def test_one_that_drains_and_exits_without_a_bye_has_failed_unless_it_did_so_well(
        self, clean: bool, state: WorkerState
    ) -> None:
        story = running()
        story.take(DrainWorker(30.0))
        story.exits(clean=clean)
        story.link_lost()
        if clean:
            story.ended()
        assert story.state is state
        assert story.lost == [(1, "stopped" if clean else "its process exited with status 3")]


def test_a_failure_is_followed_by_a_start_after_a_delay() -> None:
    story = running()
    story.take(Loss("a failure"))
    assert story.lost == [(1, "a failure")]
    assert story.ended() == [], "the state was reported already"
    assert (story.life.status.restarts, story.life.due) == (1, story.now + POLICY.first_delay_s)
    story.later(1.99)
    assert story.new == []
    assert story.later(0.01) == [StartIncarnation(2, None)]
    story.started()
    last = story.life.status.last_failure
    assert last is not None
    assert (last.incarnation, last.reason, story.life.status.reason) == (1, "a failure", "")


def test_it_is_given_up_when_its_tries_are_used_up_and_can_be_started_again() -> None:
    story = Story()
    story.take(StartWorker())
    for _ in range(POLICY.max_failures):
        story.take(Loss("a failure"))
        story.ended()
        story.later(5)
    status = story.life.status
    assert (status.state, status.running) == (WorkerState.GIVEN_UP, False)
    assert status.reason == "failed 3 times within 300 s: a failure"
    assert story.take(StartWorker()) == [StartIncarnation(4, None)]
    assert story.take(Loss("a failure"), Ended(4)) != []
    assert story.state is WorkerState.BACKOFF, "it has all its tries again"


def test_what_its_watchers_exempt_while_it_ends_does_not_count() -> None:
    story = running(RestartPolicy(max_failures=1))
    story.take(Loss("a poison request"))
    story.take(Exempt(1))
    assert story.ended() == [StartIncarnation(2, None)], "at once: nothing counts"


def test_a_start_that_fails_is_a_failure() -> None:
    story = Story()
    story.take(StartWorker(), Loss("no such program"))
    assert story.kinds() == ["StartIncarnation", "CloseLink", "EndIncarnation"]
    story.ended()
    assert (story.state, story.life.status.reason) == (WorkerState.BACKOFF, "no such program")


def test_a_welcome_that_does_not_reach_it_is_the_end() -> None:
    story = Story()
    story.take(StartWorker(), Started(7))
    story.frames(story.hello())
    story.take(NotSent(Welcome(1)))
    assert story.lost == [(1, "its Hello could not be answered")]


def test_nothing_is_taken_from_one_that_broke_the_protocol() -> None:
    story = running()
    message = story.message(STEP)
    story.take(Frames(1, [*message.frames, b"not a frame", *message.frames]))
    assert story.kinds() == ["WorkerEvent", "CloseLink", "IncarnationLost", "EndIncarnation"]
    ((_, reason),) = story.lost
    assert reason.startswith("it broke the protocol: ")
    assert story.frames(STEP) == []
    assert story.rejections.total["frame"] == 1


def test_nothing_is_taken_from_another_process_than_the_one_that_was_started() -> None:
    story = Story()
    story.take(StartWorker(), Started(7))
    story.take(story.message(story.hello(), fault="process 9 said Hello"))
    assert story.life.status.last_failure is not None
    assert story.life.status.last_failure.reason == "it broke the protocol: process 9 said Hello"
    assert (story.of(SendCommand), story.lost) == ([], [])
    assert story.of(EndIncarnation) == [EndIncarnation(0.0)]


def test_what_is_about_an_earlier_incarnation_has_no_effect() -> None:
    story = running()
    old: list[Input] = [
        story.message(STEP),
        Exited(1, "exited", Origin.WITHIN, clean=False),
        LinkLost(1, "gone", Origin.WITHIN, final=True),
        Ended(1),
    ]
    story.exits()
    story.link_lost()
    story.ended()
    story.later(2.0)
    story.ready()
    assert story.number == 2
    assert story.take(*old) == []
    assert story.state is WorkerState.READY


def test_one_that_cannot_be_welcomed_gets_the_reason_and_leaves_by_itself() -> None:
    story = Story()
    story.take(StartWorker(), Started(7))
    story.frames(story.hello(protocol=PROTOCOL_VERSION + 1))
    refusal = Welcome(1, refusal="protocol version 2 is not 1")
    assert story.of(SendCommand) == [SendCommand(refusal)]
    assert story.of(EndIncarnation) == [EndIncarnation(LIMITS.stop)]
    story.ended()
    assert story.state is WorkerState.GIVEN_UP
    assert story.rejections.total["version"] == 1


class TestLeaving:
    def test_a_drain_has_its_grace_and_time_to_move_what_is_left(self) -> None:
        story = running()
        story.take(DrainWorker(30.0, 5.0))
        assert story.of(SendCommand) == [SendCommand(Drain(35_000))]
        assert story.state is WorkerState.DRAINING
        graces = []
        for second in range(1, 40):
            graces += [(second, each) for each in story.later(1.0) if isinstance(each, GraceEnded)]
            story.frames(IDLE)
        assert graces == [(30, GraceEnded("w", 1))]
        assert story.of(EndIncarnation) == []

    def test_one_that_does_not_leave_is_ended(self) -> None:
        story = running()
        story.take(DrainWorker(1.0))
        story.later(4.9)
        assert story.of(EndIncarnation) == []
        story.later(1.2)
        assert story.of(SendCommand) == [SendCommand(Stop())]
        assert story.of(EndIncarnation) == [EndIncarnation(0.0)]
        story.frames(STEP)
        assert story.of(WorkerEvent) == [WorkerEvent("w", 1, STEP)], "until it is gone it is listened to"

    def test_one_that_cannot_be_asked_is_ended(self) -> None:
        story = running()
        story.take(DrainWorker(30.0))
        story.take(NotSent(Drain(30_000)))
        assert story.of(EndIncarnation) == [EndIncarnation(0.0)]

    def test_one_that_has_not_said_hello_is_ended_at_once(self) -> None:
        story = Story()
        story.take(StartWorker(), Started(7), DrainWorker(1000.0))
        assert story.of(EndIncarnation) == [EndIncarnation(0.0)]
        story.ended()
        assert story.state is WorkerState.STOPPED

    def test_one_that_loads_has_nothing_to_finish(self) -> None:
        story = Story()
        story.take(StartWorker(), Started(7))
        story.frames(story.hello())
        story.take(DrainWorker(1000.0))
        assert story.of(SendCommand) == [SendCommand(Stop())]

    def test_a_restart_is_followed_by_a_start_at_once_and_is_no_failure(self) -> None:
        story = running()
        story.take(RestartWorker(30.0))
        story.frames(Bye(ByeReason.STOPPED, ""))
        assert story.ended()[-1] == StartIncarnation(2, None)
        assert story.of(IncarnationLost)[0].asked
        assert [each.status.reason for each in story.of(WorkerChanged)] == ["it is started again, as asked"]
        assert (story.life.status.restarts, story.life.status.last_failure) == (0, None)

    def test_a_stop_wins_over_a_restart(self) -> None:
        for first, second in ((RestartWorker(30.0), StopWorker()), (StopWorker(), RestartWorker(30.0))):
            story = running()
            story.take(first, second)
            story.frames(Bye(ByeReason.STOPPED, ""))
            story.ended()
            assert story.state is WorkerState.STOPPED

    def test_one_that_dies_while_it_is_to_restart_has_failed(self) -> None:
        story = running()
        story.take(RestartWorker(30.0))
        story.link_lost()
        story.exits("was killed by SIGABRT")
        story.ended()
        assert (story.state, story.life.status.restarts) == (WorkerState.BACKOFF, 1)
        assert story.life.due == story.now + POLICY.first_delay_s

    def test_one_that_waits_is_stopped_or_started_at_once(self) -> None:
        for message, state in ((StopWorker(), WorkerState.STOPPED), (RestartWorker(0.0), WorkerState.STARTING)):
            story = running()
            story.take(Loss("a failure"), Ended(1))
            story.take(message)
            assert story.state is state

    def test_one_that_is_being_ended_is_stopped_or_started_at_once_after_that(self) -> None:
        for message, state in ((StopWorker(), WorkerState.STOPPED), (RestartWorker(0.0), WorkerState.STARTING)):
            story = running(RestartPolicy(max_failures=1))
            story.take(Loss("a failure"), message)
            story.ended()
            assert story.state is state

    @pytest.mark.parametrize("reason", [ByeReason.INTERNAL, ByeReason.STOPPED])
    def test_a_bye_that_nobody_asked_for_is_a_failure(self, reason: ByeReason) -> None:
        story = running()
        story.frames(Bye(reason, "it panicked"))
        assert story.lost == [(1, f"it left ({reason}): it panicked")]
        assert story.of(EndIncarnation) == [EndIncarnation(LIMITS.stop)]


class TestLooks:
    def test_a_hang_is_attributed_as_the_peer_says(self) -> None:
        story = running()
        story.life.sent([submit()], story.now)
        for _ in range(21):
            story.frames(IDLE)
            story.later(1.0, Observation(hang_origin=Origin.OUTSIDE))
        assert story.lost == [(1, "no step finished with work in flight for 20 s")]
        lost = next(each for each in story.decisions if isinstance(each, IncarnationLost))
        assert lost.origin is Origin.OUTSIDE

    def test_after_a_stall_of_our_own_it_has_one_more_chance(self) -> None:
        story = running()
        story.stall(60.0)
        assert story.lost == []
        story.frames(IDLE)
        story.later(7.9)
        assert story.lost == []
        story = running()
        story.stall(60.0)
        story.later(1.0)
        assert story.lost == [(1, "no frame for 8 s")]

    def test_one_that_is_suspended_for_good_is_ended_at_its_limit_and_not_before(self) -> None:
        story = running()
        story.later(1.99, Observation(suspended=True))
        assert story.lost == []
        story.later(0.51, Observation(suspended=True))
        assert story.lost == [(1, "it was suspended for 2 s")]

    def test_one_that_continues_or_sends_something_in_between_begins_anew(self) -> None:
        story = running()
        for _ in range(10):
            story.later(1.5, Observation(suspended=True))
            story.later(0.5, Observation())
            story.frames(IDLE)
        for _ in range(10):
            story.later(1.5, Observation(suspended=True))
            story.frames(IDLE)
        assert story.lost == []

    def test_a_message_that_breaks_the_links_bounds_is_the_end(self) -> None:
        story = running()
        story.later(1.1, Observation(dropped=True))
        assert story.lost == [(1, "it sent a message that breaks the link's bounds")]


def test_what_it_takes_depends_on_its_state() -> None:
    story = Story()

    def refusal(*commands: Cancel | Stop) -> str:
        with pytest.raises(WorkerUnavailable) as refused:
            story.life.check_sendable(commands)
        return str(refused.value)

    assert refusal(Cancel(1)) == "worker 'w' is stopped: no process"
    story.take(StartWorker())
    assert refusal(Cancel(1)) == "worker 'w' is starting"
    story.ready()
    story.life.check_sendable([submit(), Cancel(1)])
    story.take(DrainWorker(30.0))
    story.life.check_sendable([Cancel(1), Cancel(2)])
    assert refusal(Cancel(1), Stop()) == "worker 'w' is draining"
    story.take(Loss("a failure"))
    assert refusal(Cancel(1)) == "worker 'w' is backoff: a failure"


class TestRemote:
    def joined(self) -> Story:
        story = Story(joins=True)
        story.take(StartWorker())
        story.take(Admit(request(story)))
        return story.ready()

    def test_each_join_is_another_incarnation(self) -> None:
        story = Story(joins=True)
        assert story.take(StartWorker()) == []
        for number in (1, 2):
            joins = request(story)
            assert story.take(Admit(joins)) == [StartIncarnation(number, joins)]
            story.ready()
            story.link_lost(final=True, origin=Origin.OUTSIDE)
            story.ended()
            assert (story.state, story.life.status.restarts) == (WorkerState.BACKOFF, number)
        assert [each.origin for each in story.decisions if isinstance(each, IncarnationLost)] == [Origin.OUTSIDE] * 2

    def test_a_second_one_is_declined_until_the_first_has_been_silent(self) -> None:
        story = self.joined()
        story.later(4.9)
        joins = request(story)
        (declined,) = story.take(Admit(joins))
        assert isinstance(declined, DeclineJoin)
        assert "is here already" in declined.why
        assert story.rejections.total["taken"] == 1
        story.later(0.1)
        story.take(Admit(joins))
        assert story.kinds() == ["CloseLink", "IncarnationLost", "EndIncarnation"]
        assert story.lost == [(1, "it joined again, after it had sent nothing for 5 s")]
        assert story.ended() == [StartIncarnation(2, joins)]

    def test_one_that_failed_waits(self) -> None:
        story = self.joined()
        story.frames(Bye(ByeReason.DIED, ""))
        story.ended()
        (declined,) = story.take(Admit(request(story)))
        assert isinstance(declined, DeclineJoin)
        assert declined.why == "worker 'w' failed lately (it left (died)): come again in 2.0 s"
        story.later(2.0)
        assert isinstance(story.take(Admit(request(story)))[0], StartIncarnation)

    def test_one_that_was_stopped_is_kept_out_until_it_is_started(self) -> None:
        story = self.joined()
        story.take(StopWorker())
        assert story.of(SendCommand) == [], "it may serve another gateway"
        story.ended()
        assert (story.state, story.lost) == (WorkerState.STOPPED, [(1, "stopped")])
        (declined,) = story.take(Admit(request(story)))
        assert isinstance(declined, DeclineJoin)
        assert "was stopped here, until somebody restarts it" in declined.why
        story.take(StartWorker())
        assert isinstance(story.take(Admit(request(story)))[0], StartIncarnation)

    def test_one_that_takes_over_when_the_worker_is_stopped_is_declined(self) -> None:
        story = self.joined()
        story.later(5.0)
        story.take(Admit(request(story)), StopWorker())
        story.ended()
        assert isinstance(story.new[-1], DeclineJoin)

    def test_a_drain_asks_it_to_leave_and_a_lost_link_ends_that(self) -> None:
        story = self.joined()
        story.take(DrainWorker(30.0))
        assert story.of(SendCommand) == [SendCommand(Drain(30_000))]
        story.link_lost(final=True, origin=Origin.OUTSIDE)
        assert story.of(EndIncarnation) != []
        story.ended()
        assert (story.state, story.lost) == (WorkerState.STOPPED, [(1, "stopped")])

    def test_it_is_never_looked_at_more_often_than_its_deadlines_need(self) -> None:
        assert self.joined().life.due - 100.0 == LIMITS.check_s
        assert running().life.due - 100.0 == LIMITS.observe_s


INPUTS = st.sampled_from(
    [
        StartWorker(),
        DrainWorker(3.0, 1.0),
        RestartWorker(3.0),
        StopWorker(),
        Started(7),
        "hello",
        "ended",
        "exited",
        "link lost",
        READY,
        STEP,
        BUSY,
        Bye(ByeReason.STOPPED, ""),
        Bye(ByeReason.DIED, ""),
        NotSent(Stop()),
        Loss("a failure"),
        Observation(suspended=True),
        Observation(),
    ]
)


@given(joins=st.booleans(), script=st.lists(st.tuples(INPUTS, st.floats(0, 3)), max_size=60))
def test_any_story_keeps_the_rules_for_every_worker(joins: bool, script: list[tuple[object, float]]) -> None:
    """An incarnation starts only when nothing is left of the one before, is ended once, and its watchers get its events
    between its Hello and its loss, which is reported once."""
    story = Story(joins=joins, policy=replace(POLICY, max_failures=10))
    decisions: list[Decision] = []
    ending: set[int] = set()
    for what, pause in script:
        message = as_input(story, what)
        story.now += pause
        if what == "ended" and story.number not in ending:
            continue  # nobody has asked for it
        was_there = story.number > 0 and not story.life.gone(story.number)
        if joins and what == "hello" and not was_there:
            story.take(Admit(request(story)))
        else:
            story.take(message)
        decisions += story.new
        for each in story.new:
            if isinstance(each, StartIncarnation):
                assert each.number == 1 or each.number - 1 in ending
            elif isinstance(each, EndIncarnation):
                assert story.number not in ending
                ending.add(story.number)
        assert story.life.running == story.life.status.running or story.of(WorkerChanged)
        assert (story.life.due < float("inf")) <= story.life.running
    lost = [each.incarnation for each in decisions if isinstance(each, IncarnationLost)]
    assert lost == sorted(set(lost))
    over: set[int] = set()
    for each in decisions:
        if isinstance(each, IncarnationLost):
            over.add(each.incarnation)
        elif isinstance(each, WorkerEvent):
            assert each.incarnation not in over


def as_input(story: Story, what: object) -> Input:
    match what:
        case "hello":
            return story.message(story.hello())
        case "ended":
            return Ended(story.number)
        case "exited":
            return Exited(story.number, "exited", Origin.WITHIN, clean=False)
        case "link lost":
            return LinkLost(story.number, "gone", Origin.WITHIN, final=story.joins)
        case Bye() | Step() | Heartbeat():
            return story.message(what)
        case _ if what is READY:
            return story.message(READY)
    return what  # type: ignore[return-value]  # the others are inputs
