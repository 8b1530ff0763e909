"""The actor in which a worker runs, here without Ray's processes: it starts one, and reports and causes its end."""

import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

pytest.importorskip("ray", reason="needs the `ray` extra")

from structlog.testing import capture_logs

from cli.scaling.placement import ClusterEnded, ClusterLost
from cli.scaling.ray_cluster import (
    HEAD_LOST_S,
    HeadWatch,
    RayCluster,
    RayMessages,
    lack_of,
    lease_class,
    placed_worker_class,
)
from tests.ports import port_for_later

DEADLINE_S = 60.0


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    place = placed_worker_class()()
    yield place
    place.stop(0.0)


def until_ended(place: Any) -> dict[str, Any]:
    deadline = time.monotonic() + DEADLINE_S
    while (report := place.report())["state"] == "running":
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return dict(report)


def test_the_end_of_a_worker_is_reported_with_its_reason(place: Any, tmp_path: Path) -> None:
    assert place.report() | {"machine": ""} == {"state": "empty", "machine": "", "pid": 0, "why": ""}
    place.start("ray-0", "cli", ["worker", "--backend", "scripted"], {})
    assert until_ended(place)["why"].startswith("exit status 1: --join is needed")
    place.start("ray-0", "platform", [], {"PYTHONDONTWRITEBYTECODE": "1"})
    assert until_ended(place)["why"].startswith("exit status 0: ")
    assert len(list(tmp_path.iterdir())) == 1
    place.stop(0.0)
    assert list(tmp_path.iterdir()) == []


def test_it_runs_in_a_session_of_its_own_with_its_token_in_the_environment_and_ends_when_it_is_stopped(
    place: Any,
) -> None:
    place.start("ray-0", "http.server", ["--bind", "127.0.0.1", "0"], {"BATON_JOIN_TOKEN": "secret"})
    place.start("ray-0", "http.server", ["--bind", "127.0.0.1", "0"], {})
    report = place.report()
    process = psutil.Process(report["pid"])
    assert (report["state"], os.getsid(process.pid)) == ("running", process.pid)
    while not (environment := process.environ()):  # in the middle of its start
        pass
    assert environment["BATON_JOIN_TOKEN"] == "secret"
    assert "secret" not in " ".join(process.cmdline())
    place.stop(DEADLINE_S)
    assert place.report()["why"].startswith(f"killed by signal {signal.SIGTERM}")


def test_a_worker_that_does_not_leave_is_killed(place: Any) -> None:
    place.start("ray-0", "http.server", ["--bind", "127.0.0.1", "0"], {})
    process = psutil.Process(place.report()["pid"])
    process.suspend()
    while process.status() != psutil.STATUS_STOPPED:
        pass
    place.stop(0.05)
    assert place.report()["why"].startswith(f"killed by signal {signal.SIGKILL}")


def test_the_last_one_holds_the_lease() -> None:
    lease = lease_class()()
    assert lease.holder() == ""
    lease.take("a")
    lease.take("b")
    assert lease.holder() == "b"


def test_a_lease_that_was_given_up_is_not_taken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """`baton scale --stop` may have ended before the one that runs looks for its lease."""

    def missing(name: str) -> None:
        raise ValueError(f"no actor {name}")

    with socket.create_server(("127.0.0.1", 0)) as head:
        address = f"127.0.0.1:{head.getsockname()[1]}"
        for name, value in {
            "init": lambda **options: None,
            "get_runtime_context": lambda: SimpleNamespace(gcs_address=address),
            "get_actor": missing,
        }.items():
            monkeypatch.setattr(f"ray.{name}", value)
        cluster = RayCluster(address, "ray", {})
        try:
            assert not cluster.holds()
        finally:
            cluster.close()


def test_what_ray_prints_is_logged() -> None:
    with capture_logs() as lines:
        print("\x1b[33m(raylet)\x1b[0m a node\n  is dead", file=RayMessages())
    assert lines == [{"event": "ray_message", "log_level": "warning", "text": "(raylet) a node is dead"}]
    assert sys.stdout.writable()


def test_a_head_that_does_not_answer_is_given_up_before_ray_ends_the_process() -> None:
    with socket.create_server(("127.0.0.1", 0)) as head:
        watch = HeadWatch(f"127.0.0.1:{head.getsockname()[1]}")
        watch.check(0.0)
    lost = "the head of the Ray cluster does not answer at 127.0.0.1:[0-9]+: "
    for now in (10.0, 9.9 + HEAD_LOST_S):
        with pytest.raises(ClusterLost, match=lost):
            watch.check(now)
    with pytest.raises(ClusterEnded, match=f"{lost}.*; its workers serve on without it"):
        watch.check(10.0 + HEAD_LOST_S)


def test_a_head_that_answers_again_is_kept() -> None:
    address = ("127.0.0.1", port_for_later())
    watch = HeadWatch("ray://{}:{}".format(*address))
    with pytest.raises(ClusterLost):
        watch.check(0.0)
    with socket.create_server(address):
        watch.check(1.0)
    with pytest.raises(ClusterLost):
        watch.check(1.0 + HEAD_LOST_S)


def test_what_no_node_has_is_named() -> None:
    small = {"Alive": True, "Resources": {"CPU": 4.0, "memory": 8e9, "node:10.0.0.1": 1.0}}
    large = {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0}}
    nodes = [small, {"Alive": True, "Resources": {"CPU": 2.0, "GPU": 1.0}}, large]
    assert lack_of({"CPU": 4, "memory": 8_000_000_000}, nodes) == ""
    assert lack_of({"CPU": 4, "GPU": 1}, nodes) == "no node has CPU 4, GPU 1; the most on one node: CPU 4, GPU 1"
    assert lack_of({"memory": 8_000_000_001}, nodes).endswith(
        "has memory 8000000001; the most on one node: memory 8000000000"
    )
    assert lack_of({"TPU": 0.5}, []) == "no node has TPU 0.5; the most on one node: TPU 0"


def test_a_machine_without_a_cluster_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray.init", no_instance)
    with pytest.raises(ClusterLost, match="no Ray cluster runs on this machine; start one here with `ray start`"):
        RayCluster("auto", "ray", {})


def no_instance(**options: Any) -> None:
    raise ConnectionError("Could not find any running Ray instance.")


@pytest.mark.parametrize("address", ["10.0.0.1", "ray://:10001", "HOST:PORT", "127.0.0.1:"])
def test_an_address_of_another_form_is_refused(address: str) -> None:
    with pytest.raises(ClusterLost, match=f"write auto, HOST:PORT or ray://HOST:PORT, not '{address}'"):
        RayCluster(address, "ray", {})


@pytest.mark.parametrize("form", ["127.0.0.1:{}", "ray://127.0.0.1:{}", "127.0.0.1:99999{}"])
def test_an_address_at_which_nothing_answers_is_named(form: str) -> None:
    address = form.format(port_for_later())
    with pytest.raises(ClusterLost, match=f"no Ray cluster answers at {address}: "):
        RayCluster(address, "ray", {})
