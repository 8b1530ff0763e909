"""What a worker's next life is told, and only that one."""

import json
import multiprocessing
from collections.abc import Iterator

import pytest

from cli.chaos.told import Teller, Told
from cli.config.model import ChosenModel
from cli.config.settings import Settings
from workers.__main__ import decode_spec
from workers.faults.plan import Fault


@pytest.fixture
def ends() -> Iterator[tuple[Told, Teller]]:
    hears, tells = multiprocessing.Pipe(duplex=False)
    with hears, tells:
        yield Told(hears), Teller(tells)


def test_a_fault_is_for_one_life_of_one_worker(ends: tuple[Told, Teller]) -> None:
    told, teller = ends
    assert told.take("w0") == ()
    teller.tell("w0", Fault("raise", 7))
    teller.tell("w0", Fault("nan", 8))
    assert told.take("w1") == ()
    assert told.take("w0") == (Fault("nan", 8),)
    assert told.take("w0") == ()


def test_a_teller_that_is_gone_has_said_what_it_said(ends: tuple[Told, Teller]) -> None:
    told, teller = ends
    teller.tell("w1", Fault("nan", 8))
    teller.pipe.close()
    assert told.take("w0") == ()
    assert told.take("w1") == (Fault("nan", 8),)
    assert told.take("w1") == ()


def test_each_start_of_a_worker_looks_what_it_is_told(ends: tuple[Told, Teller]) -> None:
    told, teller = ends
    settings = Settings(backend="scripted", workers=2)
    launches = told.launches(settings, ChosenModel.choose(settings))
    assert [launch.name for launch in launches] == ["w0", "w1"]
    teller.tell("w1", Fault("hang", 3))
    specs = [decode_spec(list(launch.command("ipc://x", 1))[-1]) for launch in launches]
    assert [spec.faults for spec in specs] == [(), (Fault("hang", 3),)]
    assert json.loads(list(launches[1].command("ipc://x", 2))[-1])["faults"] == []
