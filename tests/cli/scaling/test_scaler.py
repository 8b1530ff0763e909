"""The scaler on a cluster and a gateway in memory: it places, starts, replaces and removes workers."""

from typing import Any

import pytest
from structlog.testing import capture_logs

from cli.config.errors import CommandFailed
from cli.scaling.placement import (
    CreatePlace,
    PlaceState,
    RemovePlace,
    StartIn,
    WorkerPlace,
    actions,
    number_of_name,
)
from cli.scaling.replica_target import ReplicaTarget, ScaleRange
from cli.scaling.scaler import Scaler, Superseded
from tests.cli.scaling.fakes import FakeCluster, FakeGateway


class Scaled:
    """A scaler and what it works on."""

    def __init__(self, least: int, most: int = 0, room: int = 100) -> None:
        self.cluster, self.gateway = FakeCluster(room), FakeGateway()
        self.now = 0.0
        self.logged: list[Any] = []
        self.again(least, most)

    def again(self, least: int, most: int = 0) -> None:
        """Make the scaler of another `baton scale`."""
        target = ReplicaTarget(ScaleRange(least, most or least, 4.0, 10.0), len(self.cluster.found))
        self.scaler = Scaler(self.cluster, self.gateway, "ray", target, lambda key: ["worker", "--server-key", key])

    def tick(self, count: int = 1) -> list[str]:
        """Return what was done in so many ticks of a second."""
        done = len(self.cluster.log)
        for _ in range(count):
            self.now += 1
            with capture_logs() as lines:
                self.scaler.tick(self.now)
            self.logged += lines
        return self.cluster.log[done:]

    def events(self, name: str) -> list[Any]:
        return [line for line in self.logged if line["event"] == name]


def running(count: int, **more: Any) -> Scaled:
    """So many workers that have joined."""
    made = Scaled(count, **more)
    made.tick(2)
    made.gateway.joins(*made.cluster.found)
    made.tick()
    return made


def test_names() -> None:
    assert [number_of_name("ray", name) for name in ("ray-0", "ray-12")] == [0, 12]
    others = ("ray-01", "ray-", "ray-x", "far-1", "ray-lease", "ray-0\n", "ray")
    assert [name for name in others if number_of_name("ray", name) is not None] == []


def test_the_plan_of_all_states() -> None:
    states = [PlaceState.PENDING, PlaceState.EMPTY, PlaceState.RUNNING, PlaceState.ENDED, PlaceState.UNREACHABLE]
    places = {f"ray-{n}": WorkerPlace(f"ray-{n}", state) for n, state in enumerate(states)}
    assert actions("ray", 6, places, {"ray-3": 5.0}, 5.0) == [StartIn("ray-1"), StartIn("ray-3"), CreatePlace("ray-5")]
    assert actions("ray", 3, places, {}, 0.0) == [StartIn("ray-1"), RemovePlace("ray-4"), RemovePlace("ray-3")]
    assert actions("ray", 4, places, {"ray-3": 5.0}, 4.9) == [StartIn("ray-1"), RemovePlace("ray-4")]


def test_each_place_gets_a_worker_with_a_token_of_its_own() -> None:
    made = Scaled(2)
    assert made.tick() == ["create ray-0", "create ray-1"]
    assert made.tick() == ["start ray-0", "start ray-1"]
    assert made.cluster.started["ray-1"] == (
        ["worker", "--server-key", "server-key"],
        {"BATON_JOIN_TOKEN": "token-of-ray-1"},
    )
    assert made.tick(3) == []
    made.gateway.joins("ray-0", "ray-1")
    assert made.tick(2) == []
    assert made.events("fleet_complete") == [
        {"event": "fleet_complete", "log_level": "info", "workers": 2, "after_s": 5.0}
    ]


def test_no_token_is_made_before_a_machine_has_room() -> None:
    made = Scaled(2, room=1)
    assert made.tick(5) == ["create ray-0", "create ray-1", "start ray-0"]
    assert made.gateway.log == ["token ray-0"]
    made.cluster.room = 2
    assert made.tick() == ["start ray-1"]


def test_why_no_machine_can_have_room_is_logged_once() -> None:
    made = Scaled(1, room=0)
    made.tick(3)
    assert made.events("place_waits") == []
    for reason in ("no node has CPU 64", "no node has CPU 64", "no node has GPU 1"):
        made.cluster.become("ray-0", PlaceState.PENDING, why=reason)
        made.tick(2)
    assert [line["reason"] for line in made.events("place_waits")] == ["no node has CPU 64", "no node has GPU 1"]


def test_a_lost_place_is_replaced_when_the_cluster_has_decided() -> None:
    made = running(2)
    made.cluster.become("ray-1", PlaceState.UNREACHABLE)
    made.gateway.joins("ray-1", state="backoff")
    assert made.tick(10) == []
    del made.cluster.found["ray-1"]
    assert made.tick(2) == ["create ray-1", "start ray-1"]
    assert len(made.events("place_lost")) == 1
    made.gateway.joins("ray-1")
    made.tick()
    assert made.events("fleet_complete")[-1]["after_s"] == 12.0


def test_a_place_that_answers_again_keeps_its_worker() -> None:
    made = running(1)
    made.cluster.become("ray-0", PlaceState.UNREACHABLE)
    made.tick()
    made.cluster.become("ray-0", PlaceState.RUNNING)
    assert made.tick(5) == []


def test_a_worker_that_ends_is_started_again_with_a_growing_delay() -> None:
    made = running(1)
    starts = []
    for _ in range(4):
        made.cluster.become("ray-0", PlaceState.ENDED, why="exit status 1: no model")
        began = made.now
        while not made.tick():
            pass
        starts.append(made.now - began)
    assert starts == [2.0, 3.0, 5.0, 9.0]
    ended = made.events("worker_ended")
    assert [line["delay_s"] for line in ended] == [1.0, 2.0, 4.0, 8.0]
    assert ended[0]["reason"] == "exit status 1: no model"


def test_fewer_workers_are_drained_first_and_the_last_ones_go() -> None:
    made = running(3)
    made.again(1)
    made.scaler._target.wanted = 1
    assert made.tick() == ["remove ray-2", "remove ray-1"]
    assert made.gateway.log[-2:] == ["remove ray-2", "remove ray-1"]
    assert made.tick(3) == []


def test_another_scale_adopts_the_workers_that_run() -> None:
    made = running(2)
    made.again(3)
    assert made.tick(2) == ["create ray-2", "start ray-2"]


def test_a_worker_without_a_place_that_is_not_wanted_is_forgotten() -> None:
    made = running(1)
    made.gateway.joins("ray-4", "w0", state="backoff")
    made.tick()
    assert list(made.gateway.workers) == ["ray-0", "w0"]


def test_only_one_decides() -> None:
    made = running(1)
    made.cluster.held = False
    with pytest.raises(Superseded, match="another `baton scale` decides about ray now"):
        made.tick()


def test_problems_are_logged_once_and_tried_again() -> None:
    made = Scaled(1)
    made.gateway.refuses = "nobody answers"
    assert made.tick(3) == []
    made.gateway.refuses = ""
    made.cluster.lost = "no head"
    assert made.tick(3) == []
    made.cluster.lost = ""
    assert made.tick(2) == ["create ray-0", "start ray-0"]
    assert [line["reason"] for line in made.events("scaling_waits")] == ["nobody answers", "no head"]


def test_the_queue_scales_up_fast_and_down_slowly() -> None:
    """The queues of all workers of the model count, also of those of the gateway's own machine."""
    made = running(1, most=4)
    made.gateway.joins("w0", queue=2)
    made.gateway.waiting = 3
    assert made.tick(2) == ["create ray-1", "start ray-1"]
    made.gateway.joins("ray-0", "ray-1", active=8)
    made.gateway.waiting = 8
    assert made.tick(2) == ["create ray-2", "start ray-2"]
    made.gateway.joins("ray-2")
    made.gateway.joins("w0", "ray-0", "ray-1", "ray-2")
    made.gateway.waiting = 0
    assert made.tick(10) == []
    assert made.tick(2) == ["remove ray-2"]
    assert made.tick(10) == ["remove ray-1"]
    assert made.tick(30) == []
    assert [line["workers"] for line in made.events("replicas_changed")] == [2, 3, 2, 1]


def test_all_are_removed() -> None:
    made = running(2)
    made.gateway.workers.pop("ray-1")
    assert made.scaler.remove_all() == ["ray-1", "ray-0"]
    assert (made.gateway.log[-1], made.cluster.found) == ("remove ray-0", {})
    made.gateway.refuses = "nobody answers"
    with pytest.raises(CommandFailed, match="nobody answers"):
        made.scaler.remove_all()
