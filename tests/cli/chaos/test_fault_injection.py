"""A planned fault reaches the next incarnation of its worker, and no other."""

import json
import multiprocessing
from collections.abc import Iterator

import pytest

from cli.chaos.fault_injection import FaultReceiver, FaultSender
from cli.config.model import ChosenModel
from cli.config.settings import Settings
from workers.__main__ import decode_spec
from workers.faults.plan import Fault


@pytest.fixture
def ends() -> Iterator[tuple[FaultReceiver, FaultSender]]:
    receiving, sending = multiprocessing.Pipe(duplex=False)
    with receiving, sending:
        yield FaultReceiver(receiving), FaultSender(sending)


def test_a_fault_is_for_one_incarnation_of_one_worker(ends: tuple[FaultReceiver, FaultSender]) -> None:
    receiver, sender = ends
    assert receiver.take("w0") == ()
    sender.send("w0", Fault("raise", 7))
    sender.send("w0", Fault("nan", 8))
    assert receiver.take("w1") == ()
    assert receiver.take("w0") == (Fault("nan", 8),)
    assert receiver.take("w0") == ()


def test_faults_are_delivered_after_the_sender_has_closed(ends: tuple[FaultReceiver, FaultSender]) -> None:
    receiver, sender = ends
    sender.send("w1", Fault("nan", 8))
    sender.pipe.close()
    assert receiver.take("w0") == ()
    assert receiver.take("w1") == (Fault("nan", 8),)
    assert receiver.take("w1") == ()


def test_each_start_of_a_worker_takes_its_fault(ends: tuple[FaultReceiver, FaultSender]) -> None:
    receiver, sender = ends
    settings = Settings(backend="scripted", workers=2)
    launches = receiver.launches(settings, ChosenModel.choose(settings))
    assert [launch.name for launch in launches] == ["w0", "w1"]
    sender.send("w1", Fault("hang", 3))
    specs = [decode_spec(list(launch.command("ipc://x", 1))[-1]) for launch in launches]
    assert [spec.faults for spec in specs] == [(), (Fault("hang", 3),)]
    assert json.loads(list(launches[1].command("ipc://x", 2))[-1])["faults"] == []
